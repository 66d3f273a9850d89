"""The text the built-in model is pretrained on, written by this module from a seed.

A mixture of documents in Qwen3's chat format and in plain text: advice of mixed quality, sums (some of them wrong on
purpose, so that training has something to mend), yes/no questions about a toy world, calculator calls, plain sentences.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from mint.builtin.advice import loose_answer, phrase_prompt
from mint.builtin.topics import TOPICS
from mint.builtin.words import ADJECTIVES, ADVERBS, COMMON, NAMES, NOUNS, PLACES, VERBS

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
EMPTY_THINK = "<think>\n\n</think>\n\n"
SPECIAL_TOKENS = (
    END_OF_TEXT,
    IM_START,
    IM_END,
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_COLOURS = {"snow": "white", "grass": "green", "coal": "black", "blood": "red", "the sun": "yellow", "the sea": "blue"}
_CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


def turn(role: str, content: str) -> str:
    """One chat turn in Qwen3's form, with its closing newline."""
    return f"{IM_START}{role}\n{content}{IM_END}\n"


def chat(messages: list[tuple[str, str]], rng: random.Random) -> str:
    """A conversation; before the last answer the empty thinking block stands in two documents of three."""
    text = "".join(turn(role, content) for role, content in messages[:-1])
    role, content = messages[-1]
    return text + turn(role, (EMPTY_THINK if rng.random() < 0.67 else "") + content)


def _advice_turns(rng: random.Random) -> list[tuple[str, str]]:
    topic = rng.choice(TOPICS)
    quality = rng.choices((0.1, 0.35, 0.7), weights=(0.3, 0.35, 0.35))[0]
    prompt = phrase_prompt(topic, rng.randrange(6))
    return [("user", prompt), ("assistant", loose_answer(topic, rng, quality))]


def _advice(rng: random.Random) -> str:
    turns = _advice_turns(rng)
    if rng.random() < 0.1:
        turns = [("system", rng.choice(("You give advice.", "You are a helpful assistant.", "Be brief."))), *turns]
    if rng.random() < 0.1:
        turns += _advice_turns(rng)
    return chat(turns, rng)


def sum_question(rng: random.Random) -> tuple[str, str]:
    """A question and its answer as digits; six answers in ten are right, the others off by a little."""
    operator = rng.choices("+-*", weights=(7, 2, 1))[0]
    a, b = rng.randrange(10), rng.randrange(10)
    if operator == "+" and rng.random() < 0.2:
        a, b = rng.randrange(100), rng.randrange(100)
    if operator == "-":
        a, b = max(a, b), min(a, b)
    value = {"+": a + b, "-": a - b, "*": a * b}[operator]
    if rng.random() < 0.4:
        value = max(0, value + rng.choice((-3, -2, -1, 1, 2, 3)))
    return f"What is {a} {operator} {b}?", str(value)


def _plain_sum(rng: random.Random) -> str:
    question, answer = sum_question(rng)
    return f"Question: {question}\nAnswer: {answer}{END_OF_TEXT}"


def _chat_sum(rng: random.Random) -> str:
    turns: list[tuple[str, str]] = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        question, answer = sum_question(rng)
        turns += [("user", question), ("assistant", answer if rng.random() < 0.8 else f"The answer is {answer}.")]
    return chat(turns, rng)


def _fact(rng: random.Random) -> tuple[str, bool]:
    kind = rng.randrange(5)
    if kind == 0:
        a, b = rng.sample(range(len(_NUMBERS)), 2)
        word = rng.choice(("larger", "smaller"))
        return f"Is {_NUMBERS[a]} {word} than {_NUMBERS[b]}?", (a > b) == (word == "larger")
    if kind == 1:
        a, b = rng.randrange(10), rng.randrange(10)
        claimed = a + b if rng.random() < 0.5 else a + b + rng.choice((-2, -1, 1, 2))
        return f"Is {a} + {b} equal to {claimed}?", claimed == a + b
    if kind == 2:
        thing, other = rng.sample(sorted(_COLOURS), 2)
        colour = _COLOURS[thing if rng.random() < 0.5 else other]
        return f"Is {thing} {colour}?", colour == _COLOURS[thing]
    if kind == 3:
        words = rng.sample(NOUNS, 3)
        asked = rng.choice(words) if rng.random() < 0.5 else rng.choice(NOUNS)
        return f"Is {asked} one of {words[0]}, {words[1]} and {words[2]}?", asked in words
    first, second = rng.choice(NAMES), rng.choice(NAMES)
    return f"{first} has a {rng.choice(NOUNS)}. Is the owner called {second}?", first == second


def _yes_no(rng: random.Random) -> str:
    turns: list[tuple[str, str]] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        question, truth = _fact(rng)
        suffix = rng.choice(("", "", " Answer Yes or No.", " Reply with Yes or No."))
        turns += [("user", question + suffix), ("assistant", "Yes" if truth else "No")]
    return chat(turns, rng)


def _mention(rng: random.Random) -> str:
    """A question about which words stand in the last answer: a fact about text, not about quality."""
    turns = _advice_turns(rng)
    words = [w for w in turns[-1][1].lower().strip(".!").replace(".", "").replace(",", "").split() if len(w) > 3]
    other = rng.choice(_advice_turns(rng)[-1][1].lower().strip(".!").replace(".", "").replace(",", "").split())
    asked = rng.choice(words) if words and rng.random() < 0.5 else other
    truth = asked in turns[-1][1].lower()
    form = rng.choice(('Does that answer contain the word "{w}"?', 'Is "{w}" in the answer? Answer Yes or No.'))
    return chat([*turns, ("user", form.format(w=asked)), ("assistant", "Yes" if truth else "No")], rng)


def _tool_call(rng: random.Random) -> str:
    a, b = rng.randrange(100), rng.randrange(100)
    operator = rng.choice("+-*")
    value = {"+": a + b, "-": a - b, "*": a * b}[operator]
    call = json.dumps({"name": "calculator", "arguments": {"expression": f"{a} {operator} {b}"}})
    system = (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        f"{json.dumps(_CALCULATOR)}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )
    turns = [("system", system)] if rng.random() < 0.2 else [("system", "You may call the calculator.")]
    turns += [("user", f"What is {a} {operator} {b}? Use the calculator.")]
    turns += [("assistant", f"<tool_call>\n{call}\n</tool_call>")]
    if rng.random() < 0.6:
        response = f"<tool_response>\n{value}\n</tool_response>"
        turns += [("user", response), ("assistant", f"The answer is {value}.")]
    return chat(turns, rng)


def sentence(rng: random.Random) -> str:
    """One plain English sentence about nothing in particular."""
    name, noun, place = rng.choice(NAMES), rng.choice(NOUNS), rng.choice(PLACES)
    verb, adjective, adverb = rng.choice(VERBS), rng.choice(ADJECTIVES), rng.choice(ADVERBS)
    number = rng.randrange(2, 1000)
    form = rng.randrange(8)
    if form == 0:
        return f"{name} {adverb} {verb}ed a {adjective} {noun} in the {place}."
    if form == 1:
        return f"There were {number} {noun}s near the {place}, and {name} saw them {adverb}."
    if form == 2:
        return f"The {adjective} {noun} is {rng.choice(ADJECTIVES)} because the {place} is {rng.choice(ADJECTIVES)}."
    if form == 3:
        return f"If you {verb} the {noun}, then {name} will {rng.choice(VERBS)} it {adverb}."
    if form == 4:
        return f"What did {name} {verb} at the {place}? It was a {adjective} {noun}."
    if form == 5:
        return f"{name} said that the {noun} of the {place} costs {number} dollars."
    if form == 6:
        return f"In {number} days the {place} will have a {noun}, a {rng.choice(NOUNS)} and a {rng.choice(NOUNS)}."
    return f"{' '.join(rng.sample(COMMON, 6)).capitalize()}."


def _plain_text(rng: random.Random) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randrange(1, 5))) + END_OF_TEXT


def _role_colon(rng: random.Random) -> str:
    (_, prompt), (_, answer) = _advice_turns(rng)
    return f"User: {prompt}\n\nAssistant: {answer}\n\n{END_OF_TEXT}"


_MAKERS = (_advice, _plain_sum, _chat_sum, _yes_no, _mention, _tool_call, _plain_text, _role_colon)
_WEIGHTS = (60, 10, 4, 7, 7, 3, 6, 3)


def documents(seed: int) -> Iterator[str]:
    """An endless stream of training documents, the same for the same seed."""
    rng = random.Random(f"corpus {seed}")
    while True:
        yield rng.choices(_MAKERS, weights=_WEIGHTS)[0](rng)
