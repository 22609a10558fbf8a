"""Requests whose reply nobody reads: they are not sampled to the end, and are no turn."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

import httpx2
import pytest

from coterie.environments import gateway
from coterie.models.chat import ChatRenderer
from tests.helpers.native_templates import make_native_tokenizer
from tests.helpers.play_programs import PlayedProgram, make_program, play_program

SLOW, FAST = "Think for long.", "Be quick."
Events = list[str]


async def ask(session: Any, text: str, head: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the reply, or the status and the code of an error."""
    head = {"Authorization": f"Bearer {session.api_key}", **head}
    body = {"model": "agent", "messages": [{"role": "user", "content": text}]}
    async with httpx2.AsyncClient(headers=head, timeout=60) as client:
        reply = await client.post(f"{session.base_url}/chat/completions", json=body)
    if not reply.is_success:
        return f"{reply.status_code} {reply.json()['error']['code']}"
    return str(reply.json()["choices"][0]["message"]["content"])


async def begin_to_ask(session: Any, events: Events) -> asyncio.Task[str]:
    """Ask for a slow reply, and return when it is being sampled."""
    asking = asyncio.create_task(ask(session, SLOW))
    while "asked" not in events:
        await asyncio.sleep(0.01)
    return asking


def play(
    folder: Path, run: Callable[[Any, Events], Awaitable[None]], seconds: float
) -> tuple[PlayedProgram, Events]:
    """Play a program whose first slow reply takes so long. Return also what becomes of slow replies."""
    events = Events()

    async def think() -> str:
        is_first = not events
        events.append("asked")
        try:
            await asyncio.sleep(seconds if is_first else 0)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return "Thought."

    async def agent(task: Any, session: Any) -> float:
        await run(session, events)
        return 1.0

    renderer = ChatRenderer(make_native_tokenizer("qwen2"))
    played = play_program(
        make_program(folder, agent),
        renderer,
        lambda prompt, _: think() if SLOW in prompt else "Quick.",
    )
    assert played.score == 1.0
    played.check_views()
    return played, events


def test_a_request_whose_client_has_left_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "RETRY_SECONDS", 0.1)

    async def run(session: Any, events: Events) -> None:
        (await begin_to_ask(session, events)).cancel()
        assert await ask(session, FAST) == "Quick."
        # The same request is a new one now.
        assert await ask(session, SLOW) == "Thought."

    played, events = play(tmp_path, run, 600)
    assert events == ["asked", "cancelled", "asked"]
    speakers = [turn.speaker.name for turn in played.path]
    assert speakers == ["gateway", "agent", "agent"]
    assert "its client left before the reply" in played.path[0].text
    assert len(played.rows()) == 2


def test_a_request_in_flight_is_cancelled_when_its_program_ends(tmp_path: Path) -> None:
    async def run(session: Any, events: Events) -> None:
        await ask(session, FAST)
        asking = await begin_to_ask(session, events)
        asking.add_done_callback(lambda task: answers.put(task.result()))

    answers = SimpleQueue[str]()
    played, events = play(tmp_path, run, 600)
    assert events == ["asked", "cancelled"]
    # A program that waits on is not told to shorten its prompt.
    assert answers.get(timeout=60) == "410 None"
    assert [turn.speaker.name for turn in played.path] == ["agent", "gateway"]
    assert len(played.rows()) == 1


def test_a_retry_that_overtakes_the_end_of_its_first_connection_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "RETRY_SECONDS", 0.1)

    async def run(session: Any, events: Events) -> None:
        first = await begin_to_ask(session, events)
        again = asyncio.create_task(ask(session, SLOW, {gateway.RETRY: "1"}))
        await asyncio.sleep(0.5)
        first.cancel()
        assert await again == "Thought."

    played, events = play(tmp_path, run, 2.0)
    assert events == ["asked"] and len(played.path) == 1


def test_a_client_that_returns_gets_the_reply_that_is_being_sampled(tmp_path: Path) -> None:
    async def run(session: Any, events: Events) -> None:
        (await begin_to_ask(session, events)).cancel()
        await asyncio.sleep(1.5)
        assert await ask(session, SLOW) == "Thought."

    played, events = play(tmp_path, run, 3.0)
    assert events == ["asked"] and len(played.path) == 1
