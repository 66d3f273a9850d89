"""From trajectories to what the trainer reads: the tokens trained on are exactly the tokens sampled.

A trajectory whose every observation extends the tokens before it is one sequence; an observation that does not (history
was edited, say) starts another. A sequence holds its tokens once, and one entry per *target*, that is per token but the
first: everything here is already shifted by one.

Axes: _T target token, _D training sequence (one Datum each), _K turn of an episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.errors import InvalidRequest
from recipe.rl.types import Trajectory, Transition

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class TrainingSequence:
    """One row of training data, before it becomes a Datum. All `_T` arrays have length len(tokens) - 1."""

    # All tokens, first to last: T + 1 of them.
    tokens: list[int]
    # True exactly at targets that the policy sampled, the stop token included.
    is_sampled_T: BoolArray
    # Logprob of each sampled target under the distribution it was drawn from; 0 elsewhere.
    sampler_logprobs_T: FloatArray
    # Advantage of each sampled target; 0 elsewhere.
    advantages_T: FloatArray
    # Where it came from: group in the batch, member in the group.
    i_group: int = 0
    i_member: int = 0
    # Factor on the loss of this sequence; see `credit.length_factors`.
    loss_factor: float = 1.0
    # Logprob of each sampled target under the reference policy; None where the loss does not ask for it.
    reference_logprobs_T: FloatArray | None = None

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens."""
        return int(self.is_sampled_T.sum())

    @property
    def carries_loss_T(self) -> BoolArray:
        """True at targets with a non-zero advantage: the only ones that move the weights."""
        return self.is_sampled_T & (self.advantages_T != 0)

    def model_input(self) -> types.ModelInput:
        """The whole sequence, as `compute_logprobs` wants it."""
        return types.ModelInput.from_ints(self.tokens)

    def to_datum(self) -> types.Datum:
        """A Datum for the policy losses: target_tokens, logprobs, advantages and weights, each of shape (T,).

        The loss factor is in the advantages, which every backend takes: exact for the losses that are linear in them.
        """
        arrays = {
            "target_tokens": np.asarray(self.tokens[1:], dtype=np.int64),
            "logprobs": self.sampler_logprobs_T,
            "advantages": self.advantages_T * np.float32(self.loss_factor),
            "weights": self.is_sampled_T.astype(np.float32),
        }
        return types.Datum(
            model_input=types.ModelInput.from_ints(self.tokens[:-1]),
            loss_fn_inputs={name: types.TensorData.from_numpy(array) for name, array in arrays.items()},
        )


def sequences_from_trajectory(
    trajectory: Trajectory,
    advantage: float | Sequence[Sequence[float]],
    *,
    i_group: int = 0,
    i_member: int = 0,
    loss_factor: float = 1.0,
) -> list[TrainingSequence]:
    """The training sequences of one episode.

    advantage: one number for every sampled token, or advantages_KT with one for each token of each turn.
    The observation after the last action is not part of any of them, and neither are turns whose action is empty.
    """
    advantages_KT = (
        [[advantage] * len(transition.ac.tokens) for transition in trajectory.transitions]
        if isinstance(advantage, float | int)
        else advantage
    )
    origin = _Origin(i_group, i_member, loss_factor)
    sequences: list[TrainingSequence] = []
    row = _Row()
    for transition, advantages_T in zip(trajectory.transitions, advantages_KT, strict=True):
        observation = _tokens_of(transition)
        if observation[: len(row.tokens)] != row.tokens:
            sequences.extend(row.finish(origin))
            row = _Row()
        row.append_given(observation[len(row.tokens) :])
        row.append_sampled(transition.ac.tokens, transition.ac.logprobs, advantages_T)
    sequences.extend(row.finish(origin))
    return sequences


def trajectory_to_datums(trajectory: Trajectory, advantage: float) -> list[types.Datum]:
    """The Datums of one episode, in order of its turns."""
    return [sequence.to_datum() for sequence in sequences_from_trajectory(trajectory, advantage)]


def num_sampled_tokens(sequences_D: Iterable[TrainingSequence]) -> int:
    """Number of sampled tokens in all the sequences."""
    return sum(sequence.num_sampled for sequence in sequences_D)


@dataclass(frozen=True)
class _Origin:
    """What the sequences of one episode have in common."""

    i_group: int
    i_member: int
    loss_factor: float


class _Row:
    """A sequence under construction: one entry per token, not yet shifted."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.is_sampled: list[bool] = []
        self.logprobs: list[float] = []
        self.advantages: list[float] = []

    def append_given(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self.is_sampled += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)
        self.advantages += [0.0] * len(tokens)

    def append_sampled(self, tokens: list[int], logprobs: list[float], advantages: Sequence[float]) -> None:
        if len(tokens) != len(logprobs):
            raise InvalidRequest(
                f"an action has {len(tokens)} tokens and {len(logprobs)} logprobs; it needs one per token."
            )
        assert len(advantages) == len(tokens), f"{len(tokens)} sampled tokens, {len(advantages)} advantages"
        if tokens and not self.tokens:
            raise InvalidRequest(
                "the observation before the first action is empty, so its first token has nothing to be predicted from;"
                " give the environment a prompt of at least one token."
            )
        self.tokens += tokens
        self.is_sampled += [True] * len(tokens)
        self.logprobs += logprobs
        self.advantages += advantages

    def finish(self, origin: _Origin) -> list[TrainingSequence]:
        """The sequence up to its last sampled token, or nothing where nothing was sampled."""
        if not any(self.is_sampled):
            return []
        num_tokens = len(self.tokens) - self.is_sampled[::-1].index(True)
        is_sampled_T = np.asarray(self.is_sampled[1:num_tokens], dtype=np.bool_)
        sequence = TrainingSequence(
            tokens=self.tokens[:num_tokens],
            is_sampled_T=is_sampled_T,
            sampler_logprobs_T=np.asarray(self.logprobs[1:num_tokens], dtype=np.float32),
            advantages_T=np.asarray(self.advantages[1:num_tokens], dtype=np.float32),
            i_group=origin.i_group,
            i_member=origin.i_member,
            loss_factor=origin.loss_factor,
        )
        return [sequence]


def _tokens_of(transition: Transition) -> list[int]:
    chunks = transition.ob.chunks
    other = next((chunk for chunk in chunks if not isinstance(chunk, types.EncodedTextChunk)), None)
    if other is not None:
        raise InvalidRequest(
            f"an observation holds a {type(other).__name__}; RL trains on text: use EncodedTextChunk only."
        )
    return transition.ob.to_ints()
