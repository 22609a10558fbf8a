"""Endpoints: a small HTTP server that stands for a paid service and its bad days (its replies are made up, its sockets
are real)."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import ValidationError

from coterie.config.resolve import resolve
from coterie.engines.endpoint import (
    MAX_WAIT,
    Bucket,
    Endpoint,
    EndpointSettings,
    EndpointUsage,
    Limits,
    Reply,
    Utterance,
    read_reply,
    retry_after,
)
from coterie.engines.protocol import EngineError
from coterie.errors import UserError

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


def settings(url: str, **more: Any) -> EndpointSettings:
    return EndpointSettings(**{"url": url, "model": "judge", "backoff": 0.001, **more})


def chat(
    one: EndpointSettings, *, count: int = 1, **more: Any
) -> tuple[list[Reply], EndpointUsage]:
    async def talk() -> tuple[list[Reply], EndpointUsage]:
        async with Endpoint(one) as endpoint:
            asked = {"max_tokens": 30, **more}
            calls = (endpoint.chat(HELLO, **asked) for _ in range(count))
            return await asyncio.gather(*calls), endpoint.usage

    return asyncio.run(talk())


def fail(one: EndpointSettings) -> tuple[str, EndpointUsage]:
    """Why a chat failed for good, and the usage."""

    async def talk() -> tuple[str, EndpointUsage]:
        async with Endpoint(one) as endpoint:
            with pytest.raises(EngineError) as failed:
                await endpoint.chat(HELLO, max_tokens=30)
            return str(failed.value), endpoint.usage

    return asyncio.run(talk())


def test_what_is_asked_for_is_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    with service(says(200, FINE)) as one:
        (reply,), _ = chat(settings(one.url + "/", key_variable="JUDGE_API_KEY"))
        assert reply == Reply("Hi.", "stop", 100, 20, 40, False)
        more = {"temperature": 0.5, "top_p": 0.9, "stop": ["x"], "seed": 3}
        chat(settings(one.url, limit_name="max_completion_tokens"), **more)
        chat(settings(one.url, template_args={"enable_thinking": False}))
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello?"},
    ]
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
        ({"content": "Hi."}, "", "Hi."),
        ({"content": "Hi.", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\n", "Hi."),
        ({"content": "<think>hm</think>\n\nHi."}, "<think>hm</think>\n\n", "Hi."),
        ({"content": "hm\n</think>\n\nHi."}, "hm\n</think>\n\n", "Hi."),
        ({"content": "<think>hm, Hi"}, "<think>hm, Hi", ""),
        ({"content": "I write <think>hm</think>."}, "", "I write <think>hm</think>."),
    ],
)
def test_a_thought_is_no_part_of_what_a_reply_says(
    message: dict[str, str], thought: str, text: str
) -> None:
    found = read_reply(json.dumps({"choices": [{"message": message}]}).encode(), 1)
    assert found is not None and (found.thought, found.text) == (thought, text)


@pytest.mark.parametrize(
    "bad",
    [
        fails(500, "oops"),
        fails(503, "busy", Retry_After="0"),
        fails(429, "slow down", Retry_After="0"),
        says(200, b'{"choices": [{"mess'),
        says(200, {"choices": []}),
        says(200, b"<html>Bad gateway</html>"),
        hangs_up,
    ],
)
def test_what_may_pass_is_tried_again(bad: Answer) -> None:
    with service(bad, bad, says(200, FINE)) as one:
        (reply,), usage = chat(settings(one.url))
    assert reply.text == "Hi."
    assert (usage.requests, usage.retries, usage.failures) == (1, 2, 0)
    assert len(one.bodies) == 3


def test_a_stall_is_given_up_and_tried_again() -> None:
    with service(says(200, FINE)) as one:
        one.script.insert(0, one.stalls)
        (reply,), usage = chat(settings(one.url, timeout=0.5))
    assert (reply.text, usage.retries) == ("Hi.", 1)
    with service(says(200, FINE)) as one:
        one.script = [one.stalls]
        said, usage = fail(settings(one.url, timeout=0.1, retries=1))
    assert "no answer within 0.1 s (after 2 tries)" in said
    assert (usage.requests, usage.retries, usage.failures) == (0, 1, 1)


def test_what_does_not_pass_fails_at_once_with_the_servers_words() -> None:
    quota = {"error": {"message": "You have no credit", "code": "insufficient_quota"}}
    for answer, words in (
        (fails(400, "temperature is too hot"), "status 400: temperature is too hot"),
        (fails(401, "who are you"), "status 401: who are you"),
        (says(404, b"no such page"), "status 404: no such page"),
        (says(422, {"detail": [{"msg": "bad"}]}), '"bad"'),
        (says(302, b"", Location="http://127.0.0.1:9/"), "status 302"),
        (says(429, quota), "You have no credit"),
    ):
        with service(answer) as one:
            said, usage = fail(settings(one.url))
        assert words in said and said.startswith(f"judge at {one.url}: ")
        assert len(one.bodies) == 1 and usage.failures == 1
    with service(fails(500, "x" * 5000)) as one:
        said, _ = fail(settings(one.url, retries=2))
    assert len(one.bodies) == 3 and "after 3 tries" in said
    assert len(said) < 500


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    said, _ = fail(settings(f"http://127.0.0.1:{port}/v1", retries=1))
    assert "no connection" in said


def test_no_more_requests_at_once_than_allowed() -> None:
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
        replies, usage = chat(settings(one.url, concurrency=3), count=12)
    assert len(replies) == usage.requests == 12
    assert most <= 3


def test_usage_is_counted_estimated_where_the_server_does_not_and_priced() -> None:
    silent = {"choices": FINE["choices"]}
    with service(says(200, FINE), says(200, silent)) as one:
        prices = {"prompt_price": 2, "cached_price": 1, "completion_price": 10}

        async def talk() -> tuple[list[Reply], EndpointUsage]:
            async with Endpoint(settings(one.url, **prices)) as endpoint:
                replies = [await endpoint.chat(HELLO, max_tokens=5) for _ in range(2)]
                return replies, endpoint.usage

        (counted, guessed), usage = asyncio.run(talk())
        _, free = chat(settings(one.url))
    assert (counted.estimated, guessed.estimated) == (False, True)
    assert (guessed.prompt_tokens, guessed.completion_tokens) == (4, 1)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (104, 40, 21)
    assert usage.cost == pytest.approx((64 * 2 + 40 * 1 + 21 * 10) / 1e6)
    assert "1 requests by estimate" in str(usage) and "cost 0.0004" in str(usage)
    assert free.cost is None and "cost" not in str(free)


def taken(per_minute: float, amounts: list[float]) -> list[float]:
    """When each amount is taken by somebody who takes as soon as possible."""
    bucket, now, times = Bucket(per_minute, 0.0), 0.0, []
    for amount in amounts:
        now += bucket.missing(amount, now)
        assert bucket.missing(amount, now) == 0
        bucket.take(amount)
        times.append(now)
    return times


@pytest.mark.parametrize("per_minute", [1, 2, 3, 10, 60, 1000])
def test_no_minute_has_more_requests_than_allowed(per_minute: int) -> None:
    times = taken(per_minute, [1.0] * (4 * per_minute + 1))
    most = max(sum(start <= t < start + 60 - 1e-6 for t in times) for start in times)
    assert per_minute * 0.8 <= most <= per_minute
    assert times[-1] <= 60 * 4 / 0.9 + 60


def test_large_amounts_are_owed() -> None:
    times = taken(1200, [1000.0, 1000.0, 1.0])
    rate = (1200 - 100 + 1) / 60
    assert times[0] == 0, "a full bucket lets a large one go"
    assert times[1] == pytest.approx(1000 / rate)
    assert times[2] == pytest.approx(times[1] + 901 / rate)


def test_what_was_estimated_too_high_is_given_back() -> None:
    bucket = Bucket(1200, 0.0)
    bucket.take(1000)
    assert bucket.missing(100, 0.0) > 50
    bucket.take(20 - 1000)
    assert bucket.missing(80, 0.0) == 0


def test_a_request_waits_while_the_server_has_had_enough() -> None:
    async def order() -> list[str]:
        limits, said = Limits(None, None), []
        limits.pause(0.2)
        until = time.monotonic() + 0.2

        async def ask(name: str) -> None:
            await limits.admit(1)
            assert time.monotonic() >= until
            said.append(name)

        await asyncio.gather(*(ask(name) for name in "abc"))
        return said

    assert asyncio.run(order()) == ["a", "b", "c"]


def test_retry_after_is_in_seconds_or_a_date_and_bounded() -> None:
    now = "Sat, 21 Nov 2026 15:00:00 GMT"
    for value, want in {
        "0": 0.0,
        "7": 7.0,
        "2.5": 2.5,
        "-3": 0.0,
        "99999": MAX_WAIT,
        "Sat, 21 Nov 2026 15:00:30 GMT": 30.0,
        "Sat, 21 Nov 2026 14:00:00 GMT": 0.0,
        "Sat, 21 Nov 2099 15:00:00 GMT": MAX_WAIT,
        "soon": None,
        "nan": None,
    }.items():
        assert retry_after(value, now) == want, value
    assert retry_after(None, now) is None
    assert retry_after("Sat, 21 Nov 2026 15:00:30 GMT", None) is None


def test_settings_that_can_not_work_are_refused() -> None:
    good = {"url": "https://api.example.com/v1", "model": "m"}
    assert EndpointSettings(**good).url == good["url"]  # type: ignore[arg-type]
    for bad in (
        {"url": "api.example.com"},
        {"url": "ftp://example.com"},
        {"url": "https://me:secret@example.com/v1"},
        {"url": "https://example.com/v1?key=secret"},
        {"model": ""},
        {"key_variable": KEY},
        {"requests_per_minute": 0},
        {"retries": -1},
    ):
        with pytest.raises(ValidationError):
            EndpointSettings(**{**good, **bad})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="did you mean 'model'"):
        resolve(EndpointSettings, [good], ["modle=x"])


def test_a_url_without_a_path_gets_v1() -> None:
    assert settings("http://localhost:8000").url == "http://localhost:8000/v1"
    assert settings("http://localhost:8000/api/").url == "http://localhost:8000/api"
