"""Rows that need no peer: what the machine can do and how much of it is used, scaling, and concurrent requests.

    python -m benchmarks.speed.machine roofline MODEL --data FOLDER [--dtype bfloat16]
    python -m benchmarks.speed.machine scaling MODEL --data FOLDER
    python -m benchmarks.speed.machine concurrency MODEL --data FOLDER

roofline: the rate of one large matrix product and of reading memory, and what training and decoding achieve of them.
The product is measured twice: at its best, and for as long as a training pass takes, in turn with training, because no
processor keeps up its best for long.
Training counts four operations per frozen weight and token (forward, and the gradient of the activations; frozen
weights have none) and for the vocabulary only the tokens that carry loss; adapters and attention count nothing.
Decoding counts one reading of all weights per token and batch. scaling: seconds from 1 to 16 times the tokens.
concurrency: 64 requests for one sample each against one request for 64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import mint
from benchmarks.speed import workloads
from benchmarks.speed.models import SHAPES, make_model
from benchmarks.speed.workloads import LORA_RANK, SIZES
from mint import types
from recipe.supervised.data import datum_from_model_input_weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def best_seconds(call: Callable[[], Any], repeats: int = 3, warmup: bool = True) -> float:
    """The fastest of some calls, after one that warms up."""
    if warmup:
        call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


class Product:
    """One large matrix product, by the faster of PyTorch's two means."""

    def __init__(self, dtype: torch.dtype, size: int = 2048) -> None:
        x, weight = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        calls = [lambda: torch.nn.functional.linear(x, weight)]
        if torch.backends.mkldnn.is_available():
            calls.append(lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""))
        self._operations = 2 * size**3
        seconds = [best_seconds(call, 5) for call in calls]
        self._call = calls[seconds.index(min(seconds))]
        self.best_rate = self._operations / min(seconds)

    def sustained_rate(self, seconds: float) -> float:
        """Operations per second over so long a time."""
        started, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < seconds or count == 0:
            self._call()
            count += 1
        return self._operations * count / elapsed


def read_rate() -> float:
    """Bytes per second of summing 1 GiB."""
    data = torch.ones(2**28)
    return data.numel() * 4 / best_seconds(lambda: data.sum())


class Bench:
    """A model with a fresh adapter, and the tokens of the SFT and GRPO rows."""

    def __init__(self, model: str, folder: Path, data: Path, dtype: str, home: str) -> None:
        self.folder = folder
        self.dtype = dtype
        self.sizes = SIZES[model]
        self.data = data / "gsm8k_train.jsonl"
        self.tokenizer = workloads.load_tokenizer(folder)
        self.service = mint.ServiceClient(home=home, dtype=dtype)
        self.client = self.service.create_lora_training_client(str(folder), rank=LORA_RANK, seed=0, train_unembed=False)
        self.facts = self.service.describe_model(str(folder))

    def datums(self, count: int) -> list[types.Datum]:
        """The first conversations as datums."""
        return [
            datum_from_model_input_weights(types.ModelInput.from_ints(example.tokens_T), example.weights_T)
            for example in workloads.conversations(self.data, self.tokenizer, count)
        ]

    def train_seconds(self, datums: list[types.Datum], repeats: int = 3, warmup: bool = True) -> float:
        """One forward and backward pass over the datums."""
        return best_seconds(lambda: self.client.forward_backward(datums, "cross_entropy").result(), repeats, warmup)

    def sample_seconds(self, num_requests: int, num_samples: int, max_tokens: int) -> float:
        """Concurrent requests for the same prompt."""
        (text,) = workloads.prompts(self.data, self.tokenizer, 1, shared_prefix=0)
        prompt = types.ModelInput.from_ints(self.tokenizer(text).input_ids)
        params = types.SamplingParams(max_tokens=max_tokens, temperature=1.0, stop=[])
        sampler = self.client.save_weights_and_get_sampling_client()

        def sample() -> None:
            futures = [sampler.sample(prompt, num_samples, params) for _ in range(num_requests)]
            for future in futures:
                future.result()

        return best_seconds(sample)


def roofline(bench: Bench) -> dict[str, Any]:
    """Rates of the machine, and of training and decoding."""
    dtype = _DTYPES[bench.dtype]
    product, bandwidth = Product(dtype), read_rate()
    datums = bench.datums(bench.sizes.conversations)
    num_tokens = sum(datum.model_input.length for datum in datums)
    num_loss_tokens = sum(float(datum.loss_fn_inputs["weights"].to_numpy().sum()) for datum in datums)
    vocabulary = bench.facts.vocab_size * bench.facts.hidden
    layers = bench.facts.num_parameters - vocabulary
    operations = 4 * layers * num_tokens + 4 * vocabulary * num_loss_tokens
    bench.train_seconds(datums, 1)
    shares, sustained, training = [], [], []
    for _ in range(3):
        training.append(operations / bench.train_seconds(datums, 1, warmup=False))
        sustained.append(product.sustained_rate(operations / training[-1]))
        shares.append(training[-1] / sustained[-1])
    achieved = statistics.median(training)
    rows, steps = bench.sizes.problems * bench.sizes.group_size, 32
    per_step = bench.sample_seconds(1, rows, steps) / steps
    weight_bytes = bench.facts.num_parameters * dtype.itemsize
    return {
        "best_product_gflops": round(product.best_rate / 1e9, 1),
        "sustained_product_gflops": round(statistics.median(sustained) / 1e9, 1),
        "training_gflops": round(achieved / 1e9, 1),
        "training_share_of_best": round(achieved / product.best_rate, 3),
        "training_share_of_sustained": round(statistics.median(shares), 3),
        "trained_tokens_per_second": round(num_tokens * achieved / operations, 1),
        "read_gb_per_second": round(bandwidth / 1e9, 1),
        "decoding_gb_per_second": round(weight_bytes / per_step / 1e9, 1),
        "decoding_share_of_bandwidth": round(weight_bytes / per_step / bandwidth, 3),
        "decoding_gflops": round(2 * bench.facts.num_parameters * rows / per_step / 1e9, 1),
        "decoded_rows": rows,
        "sampled_tokens_per_second": round(rows / per_step, 1),
    }


def scaling(bench: Bench, counts: Sequence[int] = (4, 8, 16, 32, 64)) -> dict[str, Any]:
    """Seconds per 1,000 tokens for so many conversations, and for so many rows."""
    datums = bench.datums(max(counts))
    tokens = [sum(datum.model_input.length for datum in datums[:count]) for count in counts]
    training = [bench.train_seconds(datums[:count], 2) for count in counts]
    sampling = [bench.sample_seconds(1, count, 32) for count in counts]
    return {
        "conversations": list(counts),
        "seconds_per_1000_trained_tokens": [
            round(1000 * seconds / num, 3) for seconds, num in zip(training, tokens, strict=True)
        ],
        "seconds_per_1000_sampled_tokens": [
            round(1000 * seconds / (32 * count), 3) for count, seconds in zip(counts, sampling, strict=True)
        ],
    }


def concurrency(bench: Bench, num_requests: int = 64, max_tokens: int = 64) -> dict[str, Any]:
    """Single requests against one request for as many samples."""
    one = bench.sample_seconds(1, num_requests, max_tokens)
    many = bench.sample_seconds(num_requests, 1, max_tokens)
    return {
        "requests": num_requests,
        "one_request_seconds": round(one, 3),
        "single_requests_seconds": round(many, 3),
        "ratio": round(many / one, 3),
    }


def main(argv: list[str] | None = None) -> None:
    """Print one JSON line."""
    rows: dict[str, Callable[[Bench], dict[str, Any]]] = {
        "roofline": roofline,
        "scaling": scaling,
        "concurrency": concurrency,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=list(rows))
    parser.add_argument("model", choices=list(SHAPES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "mint_speed_models")
    parser.add_argument("--dtype", choices=list(_DTYPES), default="bfloat16")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as home:
        folder = make_model(options.model, options.models)
        found = rows[options.row](Bench(options.model, folder, options.data, options.dtype, home))
    head = {"row": options.row, "model": options.model, "dtype": options.dtype, "threads": torch.get_num_threads()}
    print(json.dumps(head | found), flush=True)


if __name__ == "__main__":
    main()
