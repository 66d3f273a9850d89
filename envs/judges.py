"""Judges of two replies: a model behind a SamplingClient, any OpenAI-compatible endpoint, or a scorer.

The first two read the same page, a rubric, the conversation and two replies, and answer with the letter of the better
one. The probability of the two letters, where it can be had, makes a soft verdict: a close call counts as one.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envs.tournament import UNREADABLE, Verdict
from envs.types import ConversationScorer
from mint import types
from mint.errors import InvalidRequest, MintError
from renderers import Message, Renderer, get_text

if TYPE_CHECKING:
    import openai

    import mint

DEFAULT_RUBRIC = "Two replies to the same conversation follow. Which is the better answer to the last message?"
LETTERS = ("A", "B")
_VERDICT_LINE = re.compile(r"verdict\W*\b([AB])\b", re.IGNORECASE)
_ONE_LETTER = re.compile(r"\W*([AB])\W*")


class JudgeFailed(MintError, RuntimeError):
    """The judge could not be asked, after all retries; the message says why and what to check."""


def judge_messages(rubric: str, prompt: list[Message], first: Message, second: Message) -> list[Message]:
    """What a judge is asked: rubric, conversation, reply A, reply B."""
    conversation = "\n".join(f"{message['role']}: {get_text(message)}" for message in prompt)
    page = (
        f"{rubric}\n\n<conversation>\n{conversation}\n</conversation>\n\n<reply A>\n{get_text(first)}\n</reply A>\n\n"
        f"<reply B>\n{get_text(second)}\n</reply B>\n\nAnswer with one letter, A or B."
    )
    return [{"role": "user", "content": page}]


class SamplingClientJudge:
    """A model as judge: P(first is better) = P(A) / (P(A) + P(B)) as its next token. Picklable, as the client is."""

    def __init__(self, sampling_client: mint.SamplingClient, renderer: Renderer, rubric: str = DEFAULT_RUBRIC) -> None:
        tokens = [renderer.encoder.encode(letter) for letter in LETTERS]
        if any(len(letter_tokens) != 1 for letter_tokens in tokens):
            raise InvalidRequest(f"the judge's tokenizer writes {LETTERS} as {tokens}: each must be one token")
        self.sampling_client = sampling_client
        self.renderer = renderer
        self.rubric = rubric
        self._letter_tokens = [letter_tokens[0] for letter_tokens in tokens]

    async def compare(self, prompt: list[Message], first: Message, second: Message) -> Verdict:
        """See PairJudge."""
        page = self.renderer.build_generation_prompt(judge_messages(self.rubric, prompt, first, second)).to_ints()
        logprobs = await asyncio.gather(*(self._logprob(page, token) for token in self._letter_tokens))
        return Verdict(_sigmoid(logprobs[0] - logprobs[1]))

    async def _logprob(self, page: list[int], token: int) -> float:
        tokens = types.ModelInput.from_ints([*page, token])
        logprobs = await self.sampling_client.compute_logprobs_async(tokens, prompt_logprobs_last_n=1)
        assert logprobs[-1] is not None, "the last of several tokens has a logprob"
        return logprobs[-1]


class ScorerJudge:
    """A scorer as judge: P(first is better) = σ(score of first − score of second), as Bradley and Terry have it.

    Which is read first makes no difference to it, so both orders agree.
    """

    def __init__(self, scorer: ConversationScorer) -> None:
        self.scorer = scorer

    async def compare(self, prompt: list[Message], first: Message, second: Message) -> Verdict:
        """See PairJudge."""
        scores = await asyncio.gather(*(self.scorer.score([*prompt, reply]) for reply in (first, second)))
        return Verdict(_sigmoid(scores[0] - scores[1]))


class EndpointJudge:
    """A model behind an OpenAI-compatible `POST {base_url}/chat/completions`. Needs the extra `judge`.

    Where the endpoint gives logprobs the verdict is soft, otherwise 0 or 1. Failed requests (connection, time-out, 408,
    409, 429, 5xx) are repeated with growing pauses, as the openai package does it.

    api_key_env: the environment variable with the key; unset, the endpoint is asked without one.
    timeout_seconds: of one request. max_concurrent: requests under way at once.
    max_tokens: of the answer; more than a letter for a judge that reasons first and ends with "Verdict: A".
    asks_logprobs: False for an endpoint that refuses the parameter.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        rubric: str = DEFAULT_RUBRIC,
        api_key_env: str = "OPENAI_API_KEY",
        timeout_seconds: float = 60.0,
        max_retries: int = 4,
        max_concurrent: int = 32,
        max_tokens: int = 8,
        asks_logprobs: bool = True,
    ) -> None:
        for name, value, least in (("max_retries", max_retries, 0), ("max_concurrent", max_concurrent, 1)):
            if value < least:
                raise InvalidRequest(f"{name}={value}: must be at least {least}")
        if timeout_seconds <= 0 or max_tokens < 1:
            raise InvalidRequest(f"timeout_seconds={timeout_seconds}, max_tokens={max_tokens}: must be above 0")
        _import_openai()
        self.base_url = base_url
        self.model = model
        self.rubric = rubric
        self.api_key_env = api_key_env
        self.timeout_seconds = timeout_seconds
        self.max_retries = max_retries
        self.max_concurrent = max_concurrent
        self.max_tokens = max_tokens
        self.asks_logprobs = asks_logprobs
        # A client and its limit belong to one event loop.
        self._opened: tuple[asyncio.AbstractEventLoop, openai.AsyncOpenAI, asyncio.Semaphore] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    async def compare(self, prompt: list[Message], first: Message, second: Message) -> Verdict:
        """See PairJudge. JudgeFailed where the endpoint does not answer, or with something else than a completion."""
        client, limit = self._client()
        messages: Any = judge_messages(self.rubric, prompt, first, second)
        extra: dict[str, Any] = {"logprobs": True, "top_logprobs": 20} if self.asks_logprobs else {}
        async with limit:
            try:
                completion = await client.chat.completions.create(
                    model=self.model, messages=messages, max_tokens=self.max_tokens, temperature=0.0, **extra
                )
            except (_import_openai().OpenAIError, ValueError) as error:
                raise JudgeFailed(f"{self._name()}: {type(error).__name__}: {error}{_advice(error)}") from error
        try:
            choice = completion.choices[0].model_dump()
            text = choice["message"]["content"] or ""
        except (AttributeError, TypeError, LookupError) as error:
            raise JudgeFailed(f"{self._name()}: the answer is no chat completion: {str(completion)[:200]!r}") from error
        return read_verdict(text, (choice.get("logprobs") or {}).get("content") or [])

    def _client(self) -> tuple[openai.AsyncOpenAI, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if self._opened is None or self._opened[0] is not loop:
            client = _import_openai().AsyncOpenAI(
                base_url=self.base_url,
                api_key=os.environ.get(self.api_key_env, "none"),
                timeout=self.timeout_seconds,
                max_retries=self.max_retries,
            )
            self._opened = (loop, client, asyncio.Semaphore(self.max_concurrent))
        return self._opened[1:]

    def _name(self) -> str:
        return f"judge {self.model!r} at {self.base_url}"


def read_verdict(text: str, token_logprobs: list[Mapping[str, Any]]) -> Verdict:
    """The verdict in a judge's answer: a letter alone, or the last "Verdict: A". Anything else is unreadable.

    token_logprobs: the answer's tokens, each with `token` and `top_logprobs`, as endpoints give them; [] where they
    give none. The token that wrote the letter makes the verdict soft.
    """
    lines = _VERDICT_LINE.findall(text)
    alone = _ONE_LETTER.fullmatch(text)
    letter = lines[-1].upper() if lines else alone.group(1) if alone else None
    if letter is None:
        return UNREADABLE
    written = [token for token in token_logprobs if token["token"].strip() == letter]
    if not written:
        return Verdict(float(letter == LETTERS[0]))
    weights = [
        sum(math.exp(top["logprob"]) for top in written[-1]["top_logprobs"] or () if top["token"].strip() == name)
        for name in LETTERS
    ]
    return Verdict(weights[0] / sum(weights)) if sum(weights) > 0 else Verdict(float(letter == LETTERS[0]))


def _advice(error: Exception) -> str:
    status = getattr(error, "status_code", None)
    if status in (401, 403):
        return "; check the key in api_key_env"
    if status == 404:
        return "; check base_url (it usually ends in /v1) and model"
    if status == 400:
        return "; if the endpoint knows no logprobs, set asks_logprobs=False"
    return "; check that the endpoint is up, or raise timeout_seconds, max_retries, or lower max_concurrent"


def _import_openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise InvalidRequest("EndpointJudge needs the openai package: pip install 'mint-recipes[judge]'") from error
    return openai


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
