"""Judges: what they are asked, how their words are read, and an endpoint that does everything an endpoint may do."""

from __future__ import annotations

import json
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from envs.judges import (
    EndpointJudge,
    JudgeFailed,
    SamplingClientJudge,
    ScorerJudge,
    judge_messages,
    read_verdict,
)
from envs.tournament import UNREADABLE, Verdict, play_tournament
from mint import types
from mint.errors import InvalidRequest
from renderers import Message, Renderer, get_text

PROMPT: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which colour?"}]
RED: Message = {"role": "assistant", "content": "Red."}
BLUE: Message = {"role": "assistant", "content": "Blue, of course."}


def _token(token: str, **probabilities: float) -> dict[str, Any]:
    return {
        "token": token,
        "logprob": math.log(probabilities.get(token.strip(), 1.0)),
        "top_logprobs": [{"token": name, "logprob": math.log(p)} for name, p in probabilities.items()],
    }


@pytest.mark.parametrize(
    ("text", "tokens", "verdict"),
    [
        ("A", [], Verdict(1.0)),
        (" B.\n", [], Verdict(0.0)),
        ("**A**", [], Verdict(1.0)),
        ("A is longer, B is better.\nVerdict: B", [], Verdict(0.0)),
        ("Verdict: A? No.\nverdict: **b**", [], Verdict(0.0)),
        ("Both are fine.", [], UNREADABLE),
        ("A or B", [], UNREADABLE),
        ("", [], UNREADABLE),
        ("A", [_token("A", A=0.6, B=0.2, The=0.1)], Verdict(0.75)),
        ("B", [_token("B", B=0.9)], Verdict(0.0)),
        # The token that wrote the verdict decides, not one before it.
        ("A? Verdict: B", [_token("A", A=0.9, B=0.1), _token("?"), _token(" B", A=0.3, B=0.6)], Verdict(1 / 3)),
        ("A", [{"token": "A", "logprob": -0.1, "top_logprobs": None}], Verdict(1.0)),
        ("A", [_token("A\n", C=1.0)], Verdict(1.0)),
    ],
)
def test_answer_is_read(text: str, tokens: list[Any], verdict: Verdict) -> None:
    found = read_verdict(text, tokens)
    assert found.is_readable == verdict.is_readable
    assert found.first_is_better == pytest.approx(verdict.first_is_better)


def test_page_shows_everything_in_order() -> None:
    (page,) = judge_messages("Which is shorter?", PROMPT, RED, BLUE)
    parts = ["Which is shorter?", "system: Be brief.", "user: Which colour?", "<reply A>\nRed.", "<reply B>\nBlue, of"]
    positions = [page["content"].index(part) for part in parts]
    assert positions == sorted(positions)


async def test_model_as_judge_weighs_its_two_letters(service: Any, renderer: Renderer, tiny_model_dir: Any) -> None:
    client = service.create_sampling_client(base_model=str(tiny_model_dir))
    judge = SamplingClientJudge(client, renderer, "Which is shorter?")
    verdict = await judge.compare(PROMPT, RED, BLUE)
    page = renderer.build_generation_prompt(judge_messages("Which is shorter?", PROMPT, RED, BLUE)).to_ints()
    p = {}
    for letter in "AB":
        logprobs = client.compute_logprobs(types.ModelInput.from_ints([*page, *renderer.encoder.encode(letter)]))
        p[letter] = math.exp(logprobs.result()[-1])
    assert verdict.first_is_better == pytest.approx(p["A"] / (p["A"] + p["B"]), abs=1e-5)
    again = await pickle.loads(pickle.dumps(judge)).compare(PROMPT, RED, BLUE)
    assert again.first_is_better == pytest.approx(verdict.first_is_better, abs=1e-5)


class LengthScorer:
    async def score(self, conversation: list[Message]) -> float:
        assert conversation[:-1] == PROMPT
        return len(get_text(conversation[-1])) / 4


async def test_scorer_as_judge_is_bradley_terry() -> None:
    judge = ScorerJudge(LengthScorer())
    # 4 and 16 characters: scores 1 and 4.
    assert (await judge.compare(PROMPT, RED, BLUE)).first_is_better == pytest.approx(1 / (1 + math.exp(3)))
    assert (await judge.compare(PROMPT, BLUE, RED)).first_is_better == pytest.approx(1 / (1 + math.exp(-3)))


class Endpoint:
    """An HTTP server in this process. `answers` makes, from the number of the request and its body, (status, body)."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answers: Callable[[int, dict[str, Any]], tuple[int, Any]] = lambda number, body: (200, completion("A"))
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with endpoint._lock:
                    endpoint._at_once += 1
                    endpoint.most_at_once = max(endpoint.most_at_once, endpoint._at_once)
                    endpoint.requests.append({"path": self.path, **body})
                    endpoint.keys.append(self.headers["Authorization"])
                    number = len(endpoint.requests)
                status, answer = endpoint.answers(number, body)
                with endpoint._lock:
                    endpoint._at_once -= 1
                content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                    self.send_header("Retry-After-Ms", "1")
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    return  # the judge has given up on this request

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def completion(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": logprobs}}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "judge", "choices": [choice]}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    started = Endpoint()
    yield started
    started.server.shutdown()
    started.server.server_close()


async def test_endpoint_is_asked_for_one_letter_with_its_probabilities(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    endpoint.answers = lambda number, body: (200, completion("B", [_token("B", A=0.2, B=0.6)]))
    judge = EndpointJudge(endpoint.url, "judge-7b", rubric="Which is shorter?", api_key_env="JUDGE_KEY")
    verdict = await judge.compare(PROMPT, RED, BLUE)
    assert verdict.first_is_better == pytest.approx(0.25)
    (request,) = endpoint.requests
    assert request["path"] == "/v1/chat/completions"
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("judge-7b", 0.0, 8)
    assert (request["logprobs"], request["top_logprobs"]) == (True, 20)
    assert request["messages"] == judge_messages("Which is shorter?", PROMPT, RED, BLUE)
    assert endpoint.keys == ["Bearer secret"]


async def test_endpoint_without_logprobs_gives_hard_verdicts(endpoint: Endpoint) -> None:
    answer = completion("A")
    del answer["choices"][0]["logprobs"]
    endpoint.answers = lambda number, body: (200, answer)
    judge = EndpointJudge(endpoint.url, "judge", asks_logprobs=False)
    assert await judge.compare(PROMPT, RED, BLUE) == Verdict(1.0)
    assert "logprobs" not in endpoint.requests[0]


@pytest.mark.parametrize("text", ["I cannot say.", None])
async def test_words_that_are_no_verdict_count_one_half(endpoint: Endpoint, text: Any) -> None:
    endpoint.answers = lambda number, body: (200, completion(text))
    assert await EndpointJudge(endpoint.url, "judge").compare(PROMPT, RED, BLUE) == UNREADABLE


@pytest.mark.parametrize("status", [429, 500, 503, 408])
async def test_passing_trouble_is_tried_again(endpoint: Endpoint, status: int) -> None:
    endpoint.answers = lambda number, body: (status, "busy") if number < 3 else (200, completion("A"))
    assert await EndpointJudge(endpoint.url, "judge").compare(PROMPT, RED, BLUE) == Verdict(1.0)
    assert len(endpoint.requests) == 3


async def test_request_that_hangs_is_tried_again(endpoint: Endpoint) -> None:
    def answers(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        if number == 1:
            time.sleep(3.0)
        return 200, completion("A")

    endpoint.answers = answers
    judge = EndpointJudge(endpoint.url, "judge", timeout_seconds=1.0)
    assert await judge.compare(PROMPT, RED, BLUE) == Verdict(1.0)
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    ("status", "body", "num_requests", "message"),
    [
        (500, "down", 2, "judge 'judge' at http.*InternalServerError.*check that the endpoint is up"),
        (401, {"error": "no key"}, 1, "AuthenticationError.*check the key in api_key_env"),
        (404, {"error": "no model"}, 1, "NotFoundError.*check base_url"),
        (400, {"error": "logprobs?"}, 1, "BadRequestError.*set asks_logprobs=False"),
        (200, "<html>It works!</html>", 1, "JSONDecodeError|no chat completion"),
        (200, {"choices": []}, 1, "the answer is no chat completion"),
        (200, {"object": "error"}, 1, "the answer is no chat completion"),
        (200, [1], 1, "no chat completion"),
    ],
)
async def test_lasting_trouble_is_an_error_that_says_what_to_check(
    endpoint: Endpoint, status: int, body: Any, num_requests: int, message: str
) -> None:
    endpoint.answers = lambda number, _: (status, body)
    with pytest.raises(JudgeFailed, match=message):
        await EndpointJudge(endpoint.url, "judge", max_retries=1).compare(PROMPT, RED, BLUE)
    assert len(endpoint.requests) == num_requests


async def test_endpoint_that_is_not_there(endpoint: Endpoint) -> None:
    endpoint.server.shutdown()
    endpoint.server.server_close()
    with pytest.raises(JudgeFailed, match="APIConnectionError.*check that the endpoint is up"):
        await EndpointJudge(endpoint.url, "judge", max_retries=0).compare(PROMPT, RED, BLUE)


async def test_tournament_runs_concurrently_up_to_the_limit(endpoint: Endpoint) -> None:
    def answers(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.1)
        # Prefers the reply with more letters, read from the page.
        page = body["messages"][0]["content"]
        a, b = (page.split(f"<reply {x}>\n")[1].split("\n</reply")[0] for x in "AB")
        return 200, completion("A" if len(a) > len(b) else "B")

    endpoint.answers = answers
    judge = pickle.loads(pickle.dumps(EndpointJudge(endpoint.url, "judge", max_concurrent=4)))
    replies: list[Message] = [{"role": "assistant", "content": "x" * n} for n in (3, 1, 2, 4)]
    result = await play_tournament(PROMPT, replies, judge)
    assert result.win_rate_G == pytest.approx([2 / 3, 0, 1 / 3, 1])
    assert len(endpoint.requests) == 12
    assert 2 <= endpoint.most_at_once <= 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_retries": -1}, "max_retries=-1: must be at least 0"),
        ({"max_concurrent": 0}, "max_concurrent=0: must be at least 1"),
        ({"timeout_seconds": 0.0}, "timeout_seconds=0.0, max_tokens=8: must be above 0"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        EndpointJudge("http://localhost", "judge", **changes)
