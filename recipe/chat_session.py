"""A conversation with a policy, as `mint chat` holds it: ask, take back, ask again, keep."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mint import types
from mint.atomic_files import append_flushed
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from renderers import Message, ParseStatus, Renderer

if TYPE_CHECKING:
    import mint
    from envs.types import ConversationScorer


@dataclass(frozen=True)
class SamplingSettings:
    """How replies are drawn. seed: None draws new ones each time; given, the same questions get the same replies."""

    temperature: float
    max_tokens: int
    seed: int | None = None


@dataclass(frozen=True)
class ChatReply:
    """A reply, how it ended, and its score where there is a scorer."""

    message: Message
    status: ParseStatus
    num_tokens: int
    score: float | None = None


@dataclass
class ChatSession:
    """One conversation; context_length: tokens that fit the model."""

    client: mint.SamplingClient
    renderer: Renderer
    settings: SamplingSettings
    context_length: int
    system: str | None = None
    scorer: ConversationScorer | None = None
    turns: list[Message] = field(default_factory=list)
    num_tries: int = 0

    def messages(self) -> list[Message]:
        """The conversation so far, the system message first."""
        system: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return system + self.turns

    def ask(self, text: str) -> ChatReply:
        """Say `text` and take the reply into the conversation. Where there is none, neither is the question."""
        self.turns.append({"role": "user", "content": text})
        try:
            reply = self._reply()
        except BaseException:
            self.turns.pop()
            raise
        self.turns.append(reply.message)
        return reply

    def retry(self) -> ChatReply:
        """Another reply to the last question instead of the last one. InvalidRequest where nothing was asked."""
        before = list(self.turns)
        question = self.undo()
        self.num_tries += 1
        try:
            return self.ask(question)
        except BaseException:
            self.turns = before
            raise

    def undo(self) -> str:
        """Take back the last question and its reply; the question. InvalidRequest where nothing was asked."""
        if not self.turns:
            raise InvalidRequest("nothing has been asked yet")
        question = self.turns[-2]["content"]
        del self.turns[-2:]
        return question

    def reset(self) -> None:
        """Begin anew; the system message stays."""
        self.turns.clear()
        self.num_tries = 0

    def save(self, path: str) -> Path:
        """Append the conversation to a .jsonl file, as a line that supervised fine-tuning reads."""
        if not self.turns:
            raise InvalidRequest("nothing has been asked yet: there is nothing to save")
        file = Path(path).expanduser()
        line = json.dumps({"messages": self.messages()}, ensure_ascii=False)
        append_flushed(file, f"{line}\n".encode())
        return file

    def _reply(self) -> ChatReply:
        prompt = self.renderer.build_generation_prompt(self.messages())
        room = self.context_length - prompt.length
        if room < 1:
            raise InvalidRequest(
                f"the conversation has {prompt.length} tokens, of {self.context_length} that the model can read: "
                "/undo takes the last turn back, /reset begins anew"
            )
        seed = self.settings.seed
        params = types.SamplingParams(
            max_tokens=min(self.settings.max_tokens, room), temperature=self.settings.temperature,
            stop=self.renderer.get_stop_sequences(),
            seed=None if seed is None else derive_seed(seed, "chat", len(self.turns), self.num_tries),
        )  # fmt: skip
        tokens = list(self.client.sample(prompt, 1, params).result().sequences[0].tokens)
        message, status = self.renderer.parse_response(tokens)
        score = None
        if self.scorer is not None:
            score = asyncio.run(self.scorer.score([*self.messages(), message]))
        return ChatReply(message, status, len(tokens), score)
