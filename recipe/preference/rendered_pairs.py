"""Pairs as tokens: what the model reads, and the batches it is trained on.

Axes: _N preference pair, _D datum, _T target token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mint import types
from mint.errors import InvalidRequest
from recipe.preference.objective import LengthModel, PairFacts
from recipe.preference.readouts import Readout, RenderedReply
from recipe.preference.types import PreferenceDatasetBuilder, PreferencePair
from renderers import Renderer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RenderedPair:
    """Both replies of the pair with this id, as the readout shows them to the model."""

    pair_id: int
    pair: PreferencePair
    chosen: RenderedReply
    rejected: RenderedReply

    @property
    def length_difference(self) -> int:
        """Tokens by which the chosen reply is longer: the replies differ in length as their sequences do."""
        return len(self.chosen.tokens) - len(self.rejected.tokens)


@dataclass(frozen=True)
class RenderedPairs:
    """The pairs that fit, and how many did not and were left out."""

    pairs: list[RenderedPair]
    num_dropped: int = 0


def load_pairs(
    builder: PreferenceDatasetBuilder, readout: Readout, renderer: Renderer, context_length: int | None = None
) -> tuple[RenderedPairs, RenderedPairs]:
    """Training and held-out pairs as tokens. Everything that may be wrong with them is found here."""
    split, examples = builder(), builder.examples
    limits = [limit for limit in (examples.max_length, context_length) if limit is not None]
    options: dict[str, Any] = {"max_length": min(limits, default=None), "on_too_long": examples.on_too_long}
    return (
        render_pairs(split.train, readout, renderer, **options),
        render_pairs(split.held_out, readout, renderer, **options),
    )


def render_pairs(
    pairs: Sequence[PreferencePair],
    readout: Readout,
    renderer: Renderer,
    *,
    max_length: int | None = None,
    on_too_long: Literal["error", "drop"] = "error",
) -> RenderedPairs:
    """Each pair that fits, as tokens; pair_id is its position in `pairs`.

    A pair of which one reply has more than `max_length` tokens, prompt and judge's question included, is an
    InvalidRequest, or with on_too_long="drop" left out with a warning: both replies go, nothing is ever cut.
    """
    rendered: list[RenderedPair] = []
    for pair_id, pair in enumerate(pairs):
        chosen = readout.render(pair.chosen_conversation, renderer)
        rejected = readout.render(pair.rejected_conversation, renderer)
        longest = max(len(chosen.tokens), len(rejected.tokens))
        if max_length is None or longest <= max_length:
            rendered.append(RenderedPair(pair_id, pair, chosen, rejected))
        elif on_too_long == "error":
            raise InvalidRequest(
                f"{pair.origin or f'pair {pair_id}, counted from 0'}: a reply has {longest} tokens with its prompt and "
                f"the judge's question, more than the limit of {max_length} (max_length, or the model's context); "
                "shorten it, raise the limit, or leave such pairs out with on_too_long='drop'"
            )
    num_dropped = len(pairs) - len(rendered)
    if num_dropped:
        logger.warning("left out %d of %d pairs longer than %s tokens", num_dropped, len(pairs), max_length)
    if pairs and not rendered:
        raise InvalidRequest(
            f"all {len(pairs)} pairs are longer than {max_length} tokens, so none is left; raise max_length or use "
            "shorter replies"
        )
    return RenderedPairs(rendered, num_dropped)


@dataclass(frozen=True)
class PairSlots:
    """Where the two datums of a pair are in a batch, and what is known of their preference."""

    pair_id: int
    i_chosen: int
    i_rejected: int
    strength: float = 1.0
    is_tie: bool = False


@dataclass(frozen=True)
class PairBatch:
    """The datums of N pairs and which belongs to which: nothing is told by position alone."""

    datums_D: list[types.Datum]
    replies_D: list[RenderedReply]
    slots_N: list[PairSlots]

    @classmethod
    def of(cls, pairs_N: Sequence[RenderedPair]) -> PairBatch:
        """The batch of these pairs."""
        replies_D: list[RenderedReply] = []
        slots_N: list[PairSlots] = []
        for pair in pairs_N:
            preference = {"strength": pair.pair.strength, "is_tie": pair.pair.is_tie}
            slots_N.append(PairSlots(pair.pair_id, len(replies_D), len(replies_D) + 1, **preference))
            replies_D += [pair.chosen, pair.rejected]
        return cls([reply.to_datum() for reply in replies_D], replies_D, slots_N)

    @property
    def num_tokens(self) -> int:
        """Tokens the model reads for this batch."""
        return sum(datum.model_input.length for datum in self.datums_D)

    @property
    def pair_of_datum_D(self) -> list[int]:
        """The pair that each datum belongs to, counted from 0 in this batch."""
        pair_of = {i: n for n, slots in enumerate(self.slots_N) for i in (slots.i_chosen, slots.i_rejected)}
        return [pair_of[i] for i in range(len(self.datums_D))]

    def facts(self, length_model: LengthModel | None = None) -> PairFacts:
        """What the objective has to know of the pairs. length_model: None where it need not know of lengths."""
        lengths_D = [len(reply.tokens) for reply in self.replies_D]
        differences_N = torch.tensor(
            [lengths_D[slots.i_chosen] - lengths_D[slots.i_rejected] for slots in self.slots_N]
        )
        return PairFacts(
            strengths_N=torch.tensor([slots.strength for slots in self.slots_N]),
            is_tie_N=torch.tensor([slots.is_tie for slots in self.slots_N]),
            length_log_odds_N=(length_model or LengthModel()).log_odds(differences_N),
        )

    def rewards(
        self,
        readout: Readout,
        logprobs_D: Sequence[torch.Tensor],
        base_logprobs_D: Sequence[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(chosen_rewards_N, rejected_rewards_N) from each datum's logprobs_T, with their gradient."""
        base_D = base_logprobs_D if base_logprobs_D is not None else [None] * len(self.replies_D)
        rewards_D = [
            readout.reward(logprobs_T, reply.weights_T, base_T)
            for logprobs_T, reply, base_T in zip(logprobs_D, self.replies_D, base_D, strict=True)
        ]
        return (
            torch.stack([rewards_D[slots.i_chosen] for slots in self.slots_N]),
            torch.stack([rewards_D[slots.i_rejected] for slots in self.slots_N]),
        )
