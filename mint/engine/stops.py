"""When a sequence ends: token ids, or strings looked for in the decoded text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from mint.errors import InvalidRequest
from mint.types import SamplingParams


@dataclass(frozen=True)
class StopRule:
    """Ends a sequence on any of `token_ids`, or once the decoded reply contains any of `strings`.

    The token that completes a stop is kept.
    """

    token_ids: frozenset[int]
    strings: tuple[str, ...]

    @classmethod
    def of(cls, params: SamplingParams, eos_token_ids: Sequence[int]) -> StopRule:
        """None: end of text. []: never. Anything given replaces the end of text."""
        stop_token_ids = getattr(params, "stop_token_ids", None)
        if params.stop is None and stop_token_ids is None:
            return cls(frozenset(eos_token_ids), ())
        stop = [params.stop] if isinstance(params.stop, str) else list(params.stop or [])
        strings = [item for item in stop if isinstance(item, str)]
        ids = [item for item in stop if not isinstance(item, str)]
        if "" in strings:
            raise InvalidRequest("stop contains an empty string, which every text contains; remove it")
        return cls(frozenset([*ids, *(stop_token_ids or [])]), tuple(strings))

    def is_met(self, tokens: list[int], tokenizer: PreTrainedTokenizerBase) -> bool:
        """Whether the last of `tokens` completes a stop."""
        if tokens[-1] in self.token_ids:
            return True
        if not self.strings:
            return False
        # A character takes at most 4 byte-level tokens, so this tail covers the longest stop string, and one token
        # more on either side keeps characters whole that are split across tokens.
        tail = tokens[-(4 * max(len(string) for string in self.strings) + 8) :]
        text = tokenizer.decode(tail)
        return any(string in text for string in self.strings)
