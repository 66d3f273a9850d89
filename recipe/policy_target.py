"""What `mint chat`, `mint compare` and `mint export` can be pointed at: a checkpoint, a run's folder, a base model."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mint.errors import InvalidRequest, NotFound
from recipe.checkpoint_utils import CHECKPOINTS_FILE, get_last_checkpoint
from recipe.model_info import resolve_renderer_name

if TYPE_CHECKING:
    import mint
    from envs.types import ConversationScorer
    from renderers import Renderer

_SCHEMES = ("mint://", "tinker://")
TARGET_HELP = "a mint:// path, the log_path of a stage (its newest checkpoint), or a base model"


@dataclass(frozen=True)
class PolicyTarget:
    """checkpoint: its mint:// path, None for a bare base model. renderer_name: the chat format it was trained with."""

    checkpoint: str | None
    base_model: str
    renderer_name: str

    @classmethod
    def find(cls, text: str, *, home: str | None = None, renderer_name: str | None = None) -> PolicyTarget:
        """Where `text` points to. renderer_name: instead of the one recorded, or recommended for the base model.

        Loads no model. NotFound, CheckpointError or InvalidRequest where there is no such thing.
        """
        checkpoint, base_model, recorded = _look_up(text, home)
        name = renderer_name or recorded
        try:
            return cls(checkpoint, base_model, resolve_renderer_name(name, base_model))
        except InvalidRequest as error:
            raise InvalidRequest(f"{error} (--renderer NAME)") from None

    def open(self, service: mint.ServiceClient) -> mint.SamplingClient:
        """A client for these weights."""
        if self.checkpoint is None:
            return service.create_sampling_client(base_model=self.base_model)
        return service.create_sampling_client(model_path=self.checkpoint)

    def renderer(self) -> Renderer:
        """What turns messages into this policy's tokens and back."""
        from recipe.tokenizer_utils import get_tokenizer
        from renderers import get_renderer

        return get_renderer(self.renderer_name, get_tokenizer(self.base_model))


def add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    """--renderer and --device."""
    parser.add_argument("--renderer", metavar="NAME", help="instead of the one recorded or recommended")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 or mps (default: the best there is)")


def add_sampling_arguments(
    parser: argparse.ArgumentParser, *, temperature: float, max_tokens: int, seed: int | None
) -> None:
    """--temperature, --max-tokens and --seed."""
    parser.add_argument(
        "--temperature", type=_not_negative, default=temperature, metavar="T",
        help=f"0 is the likeliest token, 1 the policy itself (default: {temperature:g})",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=at_least_one, default=max_tokens, metavar="N", help=f"of a reply (default: {max_tokens})"
    )
    told = "a new one each time" if seed is None else str(seed)
    parser.add_argument("--seed", type=int, default=seed, metavar="N", help=f"of the replies (default: {told})")


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be finite and not negative")
    return value


def at_least_one(text: str) -> int:
    """The type of an argument that is a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def local_service(options: argparse.Namespace) -> mint.ServiceClient:
    """The engine of this machine, with --home and --device. InvalidRequest where MINT_BASE_URL is set: checkpoints are
    looked up in storage here."""
    import mint

    if os.environ.get("MINT_BASE_URL"):
        raise InvalidRequest(
            "MINT_BASE_URL is set, but this command works with the engine and the storage of this machine: unset it"
        )
    return mint.ServiceClient(home=options.home, device=options.device)


def scorer_of(log_path: str | None, service: mint.ServiceClient) -> ConversationScorer | None:
    """The scorer of a finished preference stage, or of the one in a pipeline's folder; None for None."""
    if log_path is None:
        return None
    from recipe.preference.scorer import ScorerSpec

    folder = Path(log_path).expanduser()
    inner = folder / "preference"
    return ScorerSpec.from_log_path(inner if (inner / CHECKPOINTS_FILE).is_file() else folder).build(service)


def _look_up(text: str, home: str | None) -> tuple[str | None, str, str | None]:
    """Checkpoint, base model, and the renderer where it is recorded."""
    if text.startswith(_SCHEMES):
        return (text, *_recorded(text, home))
    folder = Path(text).expanduser()
    if (folder / CHECKPOINTS_FILE).is_file():
        record = get_last_checkpoint(folder, "sampler_path")
        if record is None or record.sampler_path is None:
            raise InvalidRequest(f"{text}: no checkpoint for sampling is recorded in it yet")
        base_model, recorded = _recorded(record.sampler_path, home)
        return record.sampler_path, base_model, record.renderer or recorded
    if stages := sorted(file.parent.name for file in folder.glob(f"*/{CHECKPOINTS_FILE}")):
        names = " or ".join(str(Path(text) / stage) for stage in stages)
        raise InvalidRequest(f"{text} holds several stages; name one: {names}")
    if text.startswith((".", "/", "~")) and not folder.is_dir():
        raise NotFound(f"{text}: no such folder; give {TARGET_HELP}")
    return None, text, None


def _recorded(path: str, home: str | None) -> tuple[str, str | None]:
    """Base model and renderer of a checkpoint on this machine."""
    from mint.checkpoint_path import CheckpointPath
    from mint.checkpoint_store import CheckpointStore

    store, checkpoint = CheckpointStore(home), CheckpointPath.parse(path)
    manifest = store.manifest(checkpoint)
    metadata = store.run(checkpoint.run_id).user_metadata or {}
    return manifest.base_model, manifest.renderer or metadata.get("renderer_name")
