"""Endpoints, against a small HTTP server on real sockets."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coterie.engines import endpoint
from coterie.engines.endpoint import (
    MAX_WAIT,
    Endpoint,
    EndpointSettings,
    EndpointUsage,
    Limits,
    Reply,
    Utterance,
    configured,
    find_key,
    read_reply,
    retry_after,
)
from coterie.engines.protocol import EngineError, EngineGone
from coterie.errors import UserError
from tests.conftest import Cli

KEY = "sk-very-secret-0123456789"
HELLO = [Utterance("system", "Be kind."), Utterance("user", "Hello?")]
FINE = {
    "choices": [{"message": {"content": "Hi."}, "finish_reason": "stop", "index": 0}],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 40},
    },
}
Answer = Callable[[BaseHTTPRequestHandler], None]


def says(status: int, body: object, **headers: str) -> Answer:
    """Answer with a status and a body (as JSON, unless it is bytes)."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def fails(status: int, message: str, **headers: str) -> Answer:
    return says(status, {"error": {"message": message, "type": "t"}}, **headers)


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


class Service(ThreadingHTTPServer):
    """Gives the answers of a script, the last one again and again."""

    daemon_threads = True

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.closing = threading.Event()
        self._turn = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def next(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers["Content-Length"])
        body = json.loads(handler.rfile.read(length))
        with self._turn:
            self.bodies.append(body)
            self.keys.append(handler.headers.get("Authorization"))
            answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        answer(handler)

    def stalls(self, handler: BaseHTTPRequestHandler) -> None:
        self.closing.wait(30)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Service)
        assert self.path == "/v1/chat/completions"
        self.server.next(self)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def service(*script: Answer) -> Iterator[Service]:
    one = Service(*script)
    thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield one
    finally:
        one.closing.set()
        one.shutdown()
        one.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BACKOFF", 0.001)


def settings(url: str, **more: Any) -> EndpointSettings:
    return EndpointSettings(**{"url": url, "model": "judge", **more})


def chat(one: EndpointSettings, *, count: int = 1, **more: Any) -> tuple[list[Any], EndpointUsage]:
    """Replies or errors of some chats, and the usage."""

    async def talk() -> tuple[list[Any], EndpointUsage]:
        async with Endpoint(one) as endpoint:
            calls = (endpoint.chat(HELLO, **{"max_tokens": 30, **more}) for _ in range(count))
            return await asyncio.gather(*calls, return_exceptions=True), endpoint.usage

    return asyncio.run(talk())


def fail(one: EndpointSettings) -> tuple[str, EndpointUsage]:
    (error,), usage = chat(one)
    assert isinstance(error, EngineError)
    return str(error), usage


def test_a_server_that_ignores_the_limit_of_tokens_is_refused() -> None:
    """As ``transformers serve`` ignores max_completion_tokens."""
    with service(says(200, FINE)) as one:
        own = settings(one.url, limit_name="max_completion_tokens")
        (error,), _ = chat(own, max_tokens=3)
        assert isinstance(error, EngineGone) and "ignores max_completion_tokens=3" in str(error)
        (reply,), _ = chat(own, max_tokens=19)  # some servers count the end of the turn apart
        assert reply.text == "Hi."


def test_what_is_asked_for_is_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    with service(says(200, FINE)) as one:
        (reply,), _ = chat(settings(one.url + "/", key_variable="JUDGE_API_KEY"))
        assert reply == Reply("Hi.", "stop", 100, 20, 40, False)
        more = {"temperature": 0.5, "top_p": 0.9, "stop": ["x"], "seed": 3}
        chat(settings(one.url, limit_name="max_completion_tokens"), **more)
        chat(settings(one.url, template_args={"enable_thinking": False}))
    messages = [{"role": one.role, "content": one.text} for one in HELLO]
    plain = {"model": "judge", "messages": messages}
    assert one.bodies == [
        {**plain, "max_tokens": 30},
        {**plain, "max_completion_tokens": 30, **more},
        {**plain, "max_tokens": 30, "chat_template_kwargs": {"enable_thinking": False}},
    ]
    assert one.keys == [f"Bearer {KEY}", None, None]


@pytest.mark.parametrize(
    ("message", "thought", "text"),
    [
        ({"content": "Hi.", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\n", "Hi."),
        ({"content": "<think>hm</think>\n\nHi."}, "<think>hm</think>\n\n", "Hi."),
        ({"content": "hm\n</think>\n\nHi."}, "hm\n</think>\n\n", "Hi."),
        ({"content": "<think>hm, Hi"}, "<think>hm, Hi", ""),
        ({"content": "I write <think>hm</think>."}, "", "I write <think>hm</think>."),
    ],
)
def test_the_thought_of_a_reply_is_not_in_its_text(
    message: dict[str, str], thought: str, text: str
) -> None:
    reply = read_reply(json.dumps({"choices": [{"message": message}]}).encode(), 1)
    assert reply is not None and (reply.thought, reply.text) == (thought, text)


def test_transient_failures_are_retried_within_limits() -> None:
    bad = (
        fails(500, "x" * 5000),
        fails(429, "slow down", Retry_After="0"),
        says(200, b'{"choices": [{"mess'),
        says(200, {"choices": []}),
        hangs_up,
    )
    with service(*bad, says(200, FINE)) as one:
        (reply,), usage = chat(settings(one.url))
        assert reply.text == "Hi."
        assert (usage.requests, usage.retries, usage.failures) == (1, 5, 0)
        one.script = [bad[0]]
        error, _ = fail(settings(one.url, retries=2))
        assert len(one.bodies) == 9 and "after 3 tries" in error and len(error) < 500
        one.script = [one.stalls]
        error, usage = fail(settings(one.url, timeout=0.1, retries=1))
        assert "no answer within 0.1 s (after 2 tries)" in error
        assert (usage.requests, usage.retries, usage.failures) == (0, 1, 1)
    error, _ = fail(settings(one.url, retries=1))
    assert "no connection" in error


def test_permanent_failures_are_not_retried() -> None:
    credit = {"error": {"message": "You have no credit", "code": "insufficient_quota"}}
    cases = (
        (fails(400, "temperature is too hot"), "status 400: temperature is too hot"),
        (says(404, b"no such page"), "status 404: no such page"),
        (says(422, {"detail": [{"msg": "bad"}]}), '"bad"'),
        (says(302, b"", Location="http://127.0.0.1:9/"), "status 302"),
        (says(429, credit), "You have no credit"),
    )
    with service(*(answer for answer, _ in cases)) as one:
        for number, (_, words) in enumerate(cases):
            error, usage = fail(settings(one.url))
            assert words in error and error.startswith(f"judge at {one.url}: ")
            assert len(one.bodies) == number + 1 and usage.failures == 1


def test_concurrency_is_limited() -> None:
    most = running = 0
    lock = threading.Lock()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        says(200, FINE)(handler)

    with service(slow) as one:
        _, usage = chat(settings(one.url, concurrency=3), count=12)
    assert usage.requests == 12 and most <= 3


def test_usage_is_counted_or_estimated_and_priced() -> None:
    silent = {"choices": FINE["choices"]}
    with service(says(200, FINE), says(200, silent)) as one:
        prices = {"prompt_price": 2, "cached_price": 1, "completion_price": 10}
        (counted, guessed), usage = chat(settings(one.url, concurrency=1, **prices), count=2)
        _, free = chat(settings(one.url))
    assert (counted.estimated, guessed.estimated) == (False, True)
    assert (guessed.prompt_tokens, guessed.completion_tokens) == (4, 1)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (104, 40, 21)
    assert usage.cost == pytest.approx((64 * 2 + 40 * 1 + 21 * 10) / 1e6)
    assert "1 requests by estimate" in str(usage) and "cost 0.0004" in str(usage)
    assert free.cost is None and "cost" not in str(free)


@pytest.mark.parametrize(
    ("requests", "tokens", "pause", "used", "times"),
    [
        (30, None, 0, 100, [0, 2, 4]),
        (30, 1000, 0, 100, [0, 6, 12]),
        (None, 1000, 0, 20, [0, 1.2, 2.4]),  # 80 of 100 estimated tokens are returned
        (30, None, 7, 100, [0, 7, 9]),
    ],
)
def test_requests_start_within_the_limits(
    requests: float | None, tokens: float | None, pause: float, used: float, times: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    now = 1000.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(endpoint.time, "monotonic", lambda: now)
    monkeypatch.setattr(endpoint.asyncio, "sleep", sleep)

    async def test() -> list[float]:
        limits, starts = Limits(requests, tokens), []
        for number in range(3):
            await limits.admit(100)
            starts.append(now - 1000.0)
            limits.settle(100, used)
            limits.pause(0 if number else pause)
        return starts

    assert asyncio.run(test()) == pytest.approx(times)


def test_retry_after_is_in_seconds_or_a_date_and_bounded() -> None:
    for value, seconds in (
        ("2.5", 2.5),
        ("-3", 0.0),
        ("99999", MAX_WAIT),
        ("Sat, 21 Nov 2026 15:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 14:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
    ):
        assert retry_after(value, "Sat, 21 Nov 2026 15:00:00 GMT") == seconds
    assert retry_after("Sat, 21 Nov 2026 15:00:30 GMT", None) is None
    for date in (
        "Sat, 21 Nov 99999999999999999999 15:00:30 GMT",
        "Sat, 21 Nov 2026 15:00:30 +" + "9" * 20,
    ):
        assert retry_after(date, "Sat, 21 Nov 2026 15:00:00 GMT") is None


def test_keys_come_from_the_environment_or_else_the_file_and_wrong_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)
    one = settings("http://127.0.0.1:9/v1", key_variable="JUDGE_API_KEY")
    (tmp_path / ".env").write_text("JUDGE_API_KEY=\nOTHER=x\n")
    with pytest.raises(UserError, match=r"JUDGE_API_KEY is not set\n.*\.env"):
        Endpoint(one, folder=tmp_path)
    monkeypatch.setenv("JUDGE_API_KEY", f"{KEY}\n{KEY}")
    with pytest.raises(UserError, match="is not a key") as refused:
        Endpoint(one, folder=tmp_path)
    assert KEY not in str(refused.value)
    monkeypatch.delenv("JUDGE_API_KEY")
    (tmp_path / ".env").write_text("export JUDGE_API_KEY='from-$FILE'  # mine\n")
    assert find_key("JUDGE_API_KEY", tmp_path).header == {"Authorization": "Bearer from-$FILE"}
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    assert KEY in find_key("JUDGE_API_KEY", tmp_path).header["Authorization"]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / ".env").write_text(f"FILE_API_KEY={KEY}\nEMPTY_API_KEY=\nOTHER={KEY}\n")
    keys = configured(tmp_path)
    assert keys["JUDGE_API_KEY"] and keys["FILE_API_KEY"]
    assert not keys["OPENAI_API_KEY"] and not keys["EMPTY_API_KEY"] and "OTHER" not in keys
    output = cli("doctor")
    assert KEY not in output.out + output.err
    assert " ok  equal samples alone and in a batch  bitwise" in output.out
    lines = [line.split("key ")[1].split() for line in output.out.splitlines() if "_KEY" in line]
    assert ["JUDGE_API_KEY", "set"] in lines and ["OPENAI_API_KEY", "not", "set"] in lines


@pytest.mark.parametrize(
    "answer",
    [
        fails(401, f"Wrong key {KEY}, go away"),
        fails(500, f"{'x' * 290} {KEY}"),
        says(200, f"{KEY}".encode()),
        hangs_up,
    ],
)
def test_a_key_is_shown_nowhere(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    async def talk(one: EndpointSettings) -> None:
        async with Endpoint(one) as endpoint:
            shown.extend((repr(endpoint), str(vars(endpoint)), repr(endpoint._key)))
            error: BaseException | None = None
            try:
                await endpoint.chat(HELLO, max_tokens=3)
            except EngineError as failure:
                error = failure
            while error is not None:
                shown.append(f"{error} {error!r}")
                error = error.__cause__ or error.__context__

    with service(answer) as one:
        keyed = settings(one.url, key_variable="JUDGE_API_KEY", retries=1)
        asyncio.run(talk(keyed))
    assert one.keys[0] == f"Bearer {KEY}", "it was sent"
    shown += [keyed.model_dump_json(), repr(keyed), caplog.text]
    assert "<JUDGE_API_KEY>" in "".join(shown)
    assert not any(KEY[:8] in text for text in shown)
