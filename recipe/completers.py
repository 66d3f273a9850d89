"""Something that continues tokens, and something that answers messages.

Both are asked one at a time and meant to be asked concurrently (asyncio.gather): the engine batches what is waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from envs.types import TokensWithLogprobs
from mint import types
from mint.errors import InvalidRequest

if TYPE_CHECKING:
    import mint
    from renderers import Message, Renderer, StopCondition

__all__ = ["MessageCompleter", "MintMessageCompleter", "MintTokenCompleter", "TokenCompleter", "TokensWithLogprobs"]


class TokenCompleter(Protocol):
    """Tokens in, tokens out."""

    async def __call__(
        self,
        model_input: types.ModelInput,
        stop: StopCondition,
        *,
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> TokensWithLogprobs:
        """Continue `model_input`. The tokens include the stop token; the logprobs are the sampler's.

        seed: makes the result reproducible. max_tokens: a limit for this call, below the completer's own.
        """
        ...


class MessageCompleter(Protocol):
    """Messages in, the assistant's message out."""

    async def __call__(self, messages: list[Message], *, seed: int | None = None) -> Message:
        """The reply to a conversation that ends with another's turn."""
        ...


@dataclass(frozen=True)
class MintTokenCompleter:
    """A TokenCompleter on a sampling client. temperature: 1 is the policy itself, 0 is argmax."""

    sampling_client: mint.SamplingClient
    max_tokens: int
    temperature: float = 1.0

    async def __call__(
        self,
        model_input: types.ModelInput,
        stop: StopCondition,
        *,
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> TokensWithLogprobs:
        """See TokenCompleter."""
        params = types.SamplingParams(
            max_tokens=self.max_tokens if max_tokens is None else min(self.max_tokens, max_tokens),
            temperature=self.temperature,
            stop=stop,
            seed=seed,
        )
        response = await self.sampling_client.sample(model_input, num_samples=1, sampling_params=params)
        sequence = response.sequences[0]
        if sequence.logprobs is None:
            raise InvalidRequest("the sampling client returned no logprobs; training needs the sampler's own")
        return TokensWithLogprobs(
            tokens=list(sequence.tokens), logprobs=list(sequence.logprobs), stop_reason=sequence.stop_reason
        )


@dataclass(frozen=True)
class MintMessageCompleter:
    """A MessageCompleter on a sampling client and a renderer. A malformed reply comes back as plain content."""

    sampling_client: mint.SamplingClient
    renderer: Renderer
    max_tokens: int
    temperature: float = 1.0

    async def __call__(self, messages: list[Message], *, seed: int | None = None) -> Message:
        """See MessageCompleter."""
        complete = MintTokenCompleter(self.sampling_client, self.max_tokens, self.temperature)
        prompt = self.renderer.build_generation_prompt(messages)
        reply = await complete(prompt, self.renderer.get_stop_sequences(), seed=seed)
        message, _ = self.renderer.parse_response(reply.tokens)
        return message
