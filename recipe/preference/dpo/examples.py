"""Pairs and labelled replies as tokens: what one example of the DPO family trains on.

Axes: _R reply, _E example.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.data_digest import Digest
from recipe.preference.dpo.labelled_replies import LabelledReply
from recipe.preference.readouts import RenderedReply, SequenceLogprob
from recipe.preference.rendered_pairs import render_pairs
from recipe.preference.types import PreferencePair, prompt_key
from renderers import Message, Renderer

logger = logging.getLogger(__name__)

# The conversation as in supervised training, with weight on the last message and its end of turn.
_READOUT = SequenceLogprob()


class Role(Enum):
    """What a reply is for in its example."""

    # Preferred, or with a thumb up.
    CHOSEN = "chosen"
    # The other one, or with a thumb down.
    REJECTED = "rejected"
    # A reply to another prompt, from which KTO estimates the KL.
    MISMATCHED = "mismatched"


@dataclass(frozen=True)
class ExampleReply:
    """A rendered reply in its role. reference_logprob: Σ w·logprob under the reference; None until it is known."""

    role: Role
    rendered: RenderedReply
    reference_logprob: float | None = None


@dataclass(frozen=True)
class Example:
    """Replies to one prompt that are trained on together, so that the engine computes their prompt once."""

    prompt: list[Message]
    messages: list[Message]
    replies: list[ExampleReply]


@dataclass(frozen=True)
class Examples:
    """The examples that fit, how many were left out as too long, and how many ties, which say nothing here."""

    examples_E: list[Example]
    num_dropped: int = 0
    num_ties: int = 0

    def rendered(self) -> list[RenderedReply]:
        """Every reply in order, for the reference."""
        return [reply.rendered for example in self.examples_E for reply in example.replies]

    def with_reference(self, logprobs_R: Sequence[float]) -> Examples:
        """The same examples with the reference's logprobs, in the order of `rendered`."""
        left = iter(logprobs_R)
        examples_E = [
            replace(example, replies=[replace(reply, reference_logprob=next(left)) for reply in example.replies])
            for example in self.examples_E
        ]
        assert next(left, None) is None, f"{len(logprobs_R)} logprobs for {len(self.rendered())} replies"
        return replace(self, examples_E=examples_E)


def examples_sha256(*sides: Examples) -> str:
    """SHA-256 of the examples of all sides, in order: each reply's role, tokens and weights."""
    digest = Digest()
    for side in sides:
        digest.add_json(len(side.examples_E))
        for example in side.examples_E:
            digest.add_json([[reply.role.value, reply.rendered.tokens] for reply in example.replies])
            for reply in example.replies:
                digest.add(reply.rendered.weights.tobytes())
    return digest.hexdigest()


def pair_examples(
    pairs: Sequence[PreferencePair],
    renderer: Renderer,
    *,
    max_length: int | None = None,
    on_too_long: Literal["error", "drop"] = "error",
) -> Examples:
    """An example for each pair that fits (see `render_pairs`) and is no tie."""
    strict = [pair for pair in pairs if not pair.is_tie]
    if pairs and not strict:
        raise InvalidRequest(f"all {len(pairs)} pairs are ties, which the losses of this stage learn nothing from")
    rendered = render_pairs(strict, _READOUT, renderer, max_length=max_length, on_too_long=on_too_long)
    examples_E = [
        Example(
            pair.pair.prompt,
            [pair.pair.chosen, pair.pair.rejected],
            [ExampleReply(Role.CHOSEN, pair.chosen), ExampleReply(Role.REJECTED, pair.rejected)],
        )
        for pair in rendered.pairs
    ]
    return Examples(examples_E, rendered.num_dropped, len(pairs) - len(strict))


def labelled_examples(
    replies: Sequence[LabelledReply],
    renderer: Renderer,
    *,
    max_length: int | None = None,
    on_too_long: Literal["error", "drop"] = "error",
) -> Examples:
    """An example for each labelled reply of at most `max_length` tokens, its prompt included."""
    examples_E: list[Example] = []
    for i_reply, reply in enumerate(replies):
        rendered = _READOUT.render(reply.conversation, renderer)
        if max_length is None or len(rendered.tokens) <= max_length:
            role = Role.CHOSEN if reply.is_desirable else Role.REJECTED
            examples_E.append(Example(reply.prompt, [reply.reply], [ExampleReply(role, rendered)]))
        elif on_too_long == "error":
            raise InvalidRequest(
                f"{reply.origin or f'reply {i_reply}, counted from 0'}: has {len(rendered.tokens)} tokens with its "
                f"prompt, more than the limit of {max_length} (max_length, or the model's context); shorten it, raise "
                "the limit, or leave such replies out with on_too_long='drop'"
            )
    num_dropped = len(replies) - len(examples_E)
    if num_dropped:
        logger.warning("left out %d of %d replies longer than %s tokens", num_dropped, len(replies), max_length)
    if replies and not examples_E:
        raise InvalidRequest(f"all {len(replies)} replies are longer than {max_length} tokens, so none is left")
    return Examples(examples_E, num_dropped)


def with_mismatched(examples: Examples, renderer: Renderer, seed: int, max_length: int | None = None) -> Examples:
    """Each example with one more reply, drawn by the seed: that of an example with another prompt.

    Where there is none that fits `max_length`, the example stays as it is.
    """
    examples_E = examples.examples_E
    order = list(range(len(examples_E)))
    random.Random(derive_seed(seed, "mismatched replies")).shuffle(order)
    extended = list(examples_E)
    for position, i_example in enumerate(order):
        mismatched = _mismatched(examples_E, order[position + 1 :] + order[:position], i_example, renderer, max_length)
        if mismatched is not None:
            example = examples_E[i_example]
            extended[i_example] = replace(example, replies=[*example.replies, mismatched])
    return replace(examples, examples_E=extended)


def _mismatched(
    examples_E: Sequence[Example], partners: Sequence[int], i_example: int, renderer: Renderer, max_length: int | None
) -> ExampleReply | None:
    example = examples_E[i_example]
    for i_partner in partners:
        partner = examples_E[i_partner]
        if prompt_key(partner.prompt) == prompt_key(example.prompt):
            continue
        # Of a pair each side is taken as often as the other.
        message = partner.messages[i_example % len(partner.messages)]
        rendered = _READOUT.render([*example.prompt, message], renderer)
        if max_length is None or len(rendered.tokens) <= max_length:
            return ExampleReply(Role.MISMATCHED, rendered)
    return None
