"""Readouts: how one number, the reward of a reply, is read from a language model.

A readout says which tokens the model is shown and how the reward follows from their logprobs. Training (tensors with
gradient) and scoring (logprobs from a SamplingClient) use the same object, so both compute the same number.

Axes: _T target token, that is every token of a sequence but its first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import chz
import numpy as np
import torch
from numpy.typing import NDArray

from mint import types
from mint.errors import InvalidRequest, nearest_name
from renderers import Message, Renderer, TrainOnWhat

# Asked as the last user turn; the answer's first token is read, never sampled.
JUDGE_QUESTION = "Is the reply above helpful? Answer Yes or No."
# Where replies begin with reasoning, the verdict is asked for without it.
_ANSWER_PREFILLS = {"qwen3": "<think>\n\n</think>\n\n"}
# Above this log p a float32 logprob no longer resolves 1 − p: see `log_odds`.
HIGHEST_RESOLVED_LOGPROB = -1e-6


@dataclass(frozen=True)
class RenderedReply:
    """A reply as the model reads it. weights has one entry per token: non-zero where the readout looks."""

    tokens: list[int]
    weights: NDArray[np.float32]

    @property
    def weights_T(self) -> torch.Tensor:
        """The weight of each target token."""
        return torch.from_numpy(self.weights[1:])

    @property
    def num_scored(self) -> int:
        """Tokens from the first weighted target to the end: no logprob before them matters."""
        weighted = np.flatnonzero(self.weights[1:])
        return len(self.weights) - 1 - int(weighted[0]) if weighted.size else 0

    def model_input(self) -> types.ModelInput:
        """All tokens, as `compute_logprobs` wants them."""
        return types.ModelInput.from_ints(self.tokens)

    def to_datum(self) -> types.Datum:
        """target_tokens and weights of shape (T,), shifted by one against the model input."""
        return types.Datum(
            model_input=types.ModelInput.from_ints(self.tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": types.TensorData.from_numpy(np.asarray(self.tokens[1:], dtype=np.int64)),
                "weights": types.TensorData.from_numpy(np.ascontiguousarray(self.weights[1:])),
            },
        )


@chz.chz(typecheck=True)
class Readout(ABC):
    """Settings and rule of one readout; light, picklable, and the same in training and scoring."""

    # Name in READOUTS and in files.
    name: ClassVar[str]

    @property
    def subtracts_base(self) -> bool:
        """Whether `reward` needs the logprobs of the base model too."""
        return False

    @abstractmethod
    def render(self, conversation: Sequence[Message], renderer: Renderer) -> RenderedReply:
        """The tokens to show the model for a conversation that ends with the assistant's reply."""

    @abstractmethod
    def reward(
        self, logprobs_T: torch.Tensor, weights_T: torch.Tensor, base_logprobs_T: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The reward, a scalar, from the logprob of each target token under the preference model.

        It depends on logprobs of weighted tokens alone: training computes no others.
        """

    def to_json(self) -> dict[str, Any]:
        """Name and settings, from which `readout_from_json` makes an equal readout."""
        return {"name": self.name, **chz.asdict(self)}


@chz.chz(typecheck=True)
class Verdict(Readout):
    """The log-odds of "Yes" when the model is asked, after the conversation, whether the reply is helpful.

    One number per reply, whatever its length. `reward` is log p − log(1 − p) of the affirmative token.
    """

    name: ClassVar[str] = "verdict"

    # The fixed user turn after the conversation.
    judge_question: str = JUDGE_QUESTION
    # The answer that means "good"; it must be one token of the model's vocabulary.
    affirmative: str = "Yes"

    def render(self, conversation: Sequence[Message], renderer: Renderer) -> RenderedReply:
        """The conversation, the judge's question, the opening of an answer, and the affirmative token."""
        _check_ends_with_reply(conversation)
        question: Message = {"role": "user", "content": self.judge_question}
        prefill = _ANSWER_PREFILLS.get(renderer.name)
        tokens = renderer.build_generation_prompt([*conversation, question], prefill=prefill).to_ints()
        tokens.append(self._affirmative_token(renderer))
        weights = np.zeros(len(tokens), dtype=np.float32)
        weights[-1] = 1.0
        return RenderedReply(tokens, weights)

    def reward(
        self, logprobs_T: torch.Tensor, weights_T: torch.Tensor, base_logprobs_T: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The log-odds of the last token, which is the affirmative one."""
        return log_odds(logprobs_T[-1])

    def _affirmative_token(self, renderer: Renderer) -> int:
        token_ids = renderer.tokenizer.encode(self.affirmative, add_special_tokens=False)
        if len(token_ids) != 1:
            raise InvalidRequest(
                f"affirmative={self.affirmative!r} is {len(token_ids)} tokens in this model's vocabulary: the verdict "
                "is read at one position; set affirmative to a word that is a single token"
            )
        return int(token_ids[0])


@chz.chz(typecheck=True)
class VerdictAndLikelihood(Verdict):
    """The verdict plus the mean logprob of the reply's tokens, both from one pass over the same sequence.

    The verdict is one position that has to see everything at once; the likelihood speaks at every token, so garbled or
    misplaced text shows with far fewer pairs. The verdict in turn sees what is likely and poor, such as repetition.
    """

    name: ClassVar[str] = "verdict_and_likelihood"

    # What one nat of mean logprob per token of the reply is worth, in nats of log-odds.
    likelihood_coef: float = 1.0

    def render(self, conversation: Sequence[Message], renderer: Renderer) -> RenderedReply:
        """As for the verdict, with weight on the reply's tokens, its end of turn included, as well."""
        tokens = super().render(conversation, renderer).tokens
        weights = np.zeros(len(tokens), dtype=np.float32)
        weights[-1] = 1.0
        question: Message = {"role": "user", "content": self.judge_question}
        start = 0
        for part in renderer.render_messages([*conversation, question], None, is_prompt=True):
            if part.i_message == len(conversation) - 1:
                start += len(part.header)
                weights[start : start + len(part.output)] = 1.0
                break
            start += len(part.tokens)
        return RenderedReply(tokens, weights)

    def reward(
        self, logprobs_T: torch.Tensor, weights_T: torch.Tensor, base_logprobs_T: torch.Tensor | None = None
    ) -> torch.Tensor:
        """log_odds(verdict) + likelihood_coef · (mean logprob of the reply's tokens)."""
        reply_weights_T = weights_T[:-1].to(logprobs_T)
        mean_logprob = (reply_weights_T * logprobs_T[:-1]).sum() / reply_weights_T.sum()
        return log_odds(logprobs_T[-1]) + self.likelihood_coef * mean_logprob


@chz.chz(typecheck=True)
class SequenceLogprob(Readout):
    """Σ w·logprob of the reply's tokens, end of turn included: how likely the model finds the reply."""

    name: ClassVar[str] = "sequence_logprob"

    # Divide by Σ w, so that a long reply is not worse for being long.
    is_per_token: bool = False
    # Subtract the base model's logprobs, so that a common reply is not better for being common.
    is_relative_to_base: bool = False

    @property
    def subtracts_base(self) -> bool:
        """True where the settings ask for it."""
        return self.is_relative_to_base

    def render(self, conversation: Sequence[Message], renderer: Renderer) -> RenderedReply:
        """The conversation as in supervised training, with weight on its last message."""
        _check_ends_with_reply(conversation)
        model_input, weights = renderer.build_supervised_example(
            list(conversation), train_on_what=TrainOnWhat.LAST_ASSISTANT_MESSAGE
        )
        return RenderedReply(model_input.to_ints(), np.asarray(weights, dtype=np.float32))

    def reward(
        self, logprobs_T: torch.Tensor, weights_T: torch.Tensor, base_logprobs_T: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The weighted sum, or mean, of logprobs or of their difference to the base model's."""
        assert (base_logprobs_T is not None) == self.is_relative_to_base, "base logprobs are given exactly where used"
        weights_T = weights_T.to(logprobs_T)
        if base_logprobs_T is not None:
            logprobs_T = logprobs_T - base_logprobs_T.to(logprobs_T)
        total = (weights_T * logprobs_T).sum()
        return total / weights_T.sum() if self.is_per_token else total


READOUTS: dict[str, type[Readout]] = {
    readout.name: readout for readout in (Verdict, VerdictAndLikelihood, SequenceLogprob)
}


def get_readout(name: str, **settings: Any) -> Readout:
    """The readout called `name`, with the given settings."""
    if name not in READOUTS:
        raise InvalidRequest(
            f"unknown readout {name!r}: known are {', '.join(sorted(READOUTS))}.{nearest_name(name, READOUTS)}"
        )
    return READOUTS[name](**settings)


def readout_from_json(document: dict[str, Any]) -> Readout:
    """The readout that `Readout.to_json` described."""
    settings = dict(document)
    return get_readout(settings.pop("name"), **settings)


def log_odds(logprob: torch.Tensor) -> torch.Tensor:
    """log p − log(1 − p) from log p <= 0, elementwise, accurate at both ends.

    With x = −log p this is −log(eˣ − 1), computed without overflow for small p and without cancellation for p near 1.
    Closer to 1 than exp(HIGHEST_RESOLVED_LOGPROB), a float32 log p cannot tell 1 − p from rounding: there the function
    goes on as its tangent, so it stays finite and increasing (by at most 1 more) and its gradient finite and alive.
    """
    highest = HIGHEST_RESOLVED_LOGPROB
    resolved = logprob.clamp(max=highest)
    x = -resolved
    is_small = x < math.log(2.0)
    # Each branch sees only arguments that it can take, so that neither puts a nan into the other's gradient.
    near_one = -torch.log(torch.expm1(torch.where(is_small, x, 1.0)))
    x_large = torch.where(is_small, 1.0, x)
    far_from_one = -x_large - torch.log1p(-torch.exp(-x_large))
    tangent = (logprob - highest).clamp(min=0.0) / -math.expm1(highest)
    return torch.where(is_small, near_one, far_from_one) + tangent


def _check_ends_with_reply(conversation: Sequence[Message]) -> None:
    if not conversation or conversation[-1]["role"] != "assistant":
        last = conversation[-1]["role"] if conversation else "nothing"
        raise InvalidRequest(f"the conversation ends with {last!r}: a reply to score must be an assistant message")
