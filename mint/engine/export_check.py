"""An exported folder, loaded the way its user will, says what the live model says.

Axes: _T token of a text, _V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mint.engine.base_model import DTYPES, location_of


@dataclass(frozen=True)
class ReloadedModel:
    """What transformers made of an exported folder."""

    model: Any
    tokenizer: Any

    @classmethod
    def open(cls, folder: Path, base_model: str | None, dtype: str, device: str) -> ReloadedModel:
        """base_model: what an adapter is put on, through PEFT; None where the folder holds a whole model."""
        source = str(folder) if base_model is None else location_of(base_model)
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype], trust_remote_code=False)
        if base_model is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(folder))
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        return cls(model.to(device).eval(), tokenizer)

    def until_end(self, reply: list[int]) -> list[int]:
        """The reply up to and with the first token at which `generate` ends."""
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        i_end = next((i for i, token in enumerate(reply) if token in ends), len(reply))
        return reply[: i_end + 1]

    def logprobs(self, tokens: list[int]) -> list[float]:
        """logprobs_T of every token but the first, given those before it, at temperature 1."""
        with torch.no_grad():
            logits_TV = self.model(torch.tensor([tokens], device=self.model.device)).logits[0, :-1].double()
        targets_T = torch.tensor(tokens[1:], device=logits_TV.device)
        return torch.log_softmax(logits_TV, dim=-1).gather(1, targets_T[:, None])[:, 0].tolist()

    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """What `generate` adds to the prompt without sampling, its end included."""
        inputs = torch.tensor([prompt], device=self.model.device)
        with torch.no_grad():
            output = self.model.generate(
                input_ids=inputs, attention_mask=torch.ones_like(inputs), do_sample=False, num_beams=1,
                max_new_tokens=max_tokens,
            )  # fmt: skip
        return output[0, len(prompt) :].tolist()
