"""A reward without a model: what can be seen of a reply by counting words.

Stage 3 falls back on it when there is no usable preference model. It tells an empty, stuttering or unrelated reply
from a plausible one, and no more: a policy trained long enough on it learns to repeat the question's words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from renderers import Message, get_text

# A reply of this many words has said something; more earns nothing.
_ENOUGH_WORDS = 8
# Words this long carry the subject of a question in most of the languages that separate words.
_CONTENT_WORD_LENGTH = 4
_WORD = re.compile(r"\w+")


def rule_based_reward(conversation: Sequence[Message]) -> float:
    """Reward in [0, 1] of the last message, given those before it; 0 for a reply without a word.

    The mean of three shares: enough words (up to 8), words that are not repeats, and content words of the last user
    message that the reply takes up (half of them is full marks; full marks, too, where there are none to take up).
    """
    words = _words(get_text(conversation[-1]))
    if not words:
        return 0.0
    asked = {word for word in _words(_last_user_text(conversation[:-1])) if len(word) >= _CONTENT_WORD_LENGTH}
    has_enough = min(1.0, len(words) / _ENOUGH_WORDS)
    distinct = len(set(words)) / len(words)
    taken_up = min(1.0, 2 * len(asked & set(words)) / len(asked)) if asked else 1.0
    return (has_enough + distinct + taken_up) / 3


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _last_user_text(messages: Sequence[Message]) -> str:
    return next((get_text(message) for message in reversed(messages) if message["role"] == "user"), "")
