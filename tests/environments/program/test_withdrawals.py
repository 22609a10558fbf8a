"""Requests whose reply nobody reads: they are not sampled to the end, and are no turn."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coterie.environments import gateway
from coterie.models.chat import ChatRenderer
from tests.helpers.native_templates import make_native_tokenizer
from tests.helpers.play_programs import PlayedProgram, make_program, play_program

SLOW, FAST = "Think for long.", "Be quick."


def ask(session: Any, text: str, seconds: float = 60.0) -> Any:
    head = {"Authorization": f"Bearer {session.api_key}"}
    body = {"model": "agent", "messages": [{"role": "user", "content": text}]}
    url = f"{session.base_url}/chat/completions"
    return httpx2.post(url, json=body, headers=head, timeout=seconds).json()


def play(folder: Path, run: Callable[[Any], float]) -> tuple[PlayedProgram, list[str]]:
    """Play a program whose slow requests take a minute. Return also what became of them."""
    events, number = list[str](), 0

    async def think() -> str:
        nonlocal number
        number += 1
        events.append("asked")
        try:
            # The second time, it takes only long enough for a client that has returned.
            await asyncio.sleep(60 if number == 1 else 0.1)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return "Thought."

    def say(prompt: str, _: int) -> Any:
        return think() if SLOW in prompt else "Quick."

    environment = make_program(folder, lambda _, session: run(session))
    renderer = ChatRenderer(make_native_tokenizer("qwen2"))
    return play_program(environment, renderer, say), events


def hang_up(session: Any, seconds: float) -> None:
    with pytest.raises(httpx2.TimeoutException):
        ask(session, SLOW, seconds)


def test_a_request_whose_client_has_left_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "RETRY_SECONDS", 0.2)

    def run(session: Any) -> float:
        hang_up(session, 2.0)
        ask(session, FAST)
        # The same request later is a new one.
        assert ask(session, SLOW)["choices"][0]["message"]["content"] == "Thought."
        return 1.0

    played, events = play(tmp_path, run)
    assert events == ["asked", "cancelled", "asked"] and played.score == 1.0
    speakers = [turn.speaker.name for turn in played.path]
    assert speakers == ["gateway", "agent", "agent"]
    assert "its client left before the reply" in played.path[0].text
    played.check_views()
    assert len(played.rows()) == 2


def test_a_request_in_flight_is_cancelled_when_its_program_ends(tmp_path: Path) -> None:
    def run(session: Any) -> float:
        ask(session, FAST)
        threading.Thread(target=ask, args=(session, SLOW), daemon=True).start()
        # Its request is the next to be answered once a further one waits.
        threading.Event().wait(1.0)
        return 1.0

    played, events = play(tmp_path, run)
    assert events == ["asked", "cancelled"] and played.score == 1.0
    played.check_views()
    assert [turn.speaker.name for turn in played.path] == ["agent", "gateway"]
    assert len(played.rows()) == 1


def test_a_client_that_returns_in_time_gets_the_reply(tmp_path: Path) -> None:
    def run(session: Any) -> float:
        hang_up(session, 2.0)
        assert ask(session, SLOW)["choices"][0]["message"]["content"] == "Thought."
        return 1.0

    environment = make_program(tmp_path, lambda _, session: run(session))
    renderer, asked = ChatRenderer(make_native_tokenizer("qwen2")), list[str]()

    async def think() -> str:
        asked.append("asked")
        await asyncio.sleep(3)
        return "Thought."

    played = play_program(environment, renderer, lambda *_: think())
    assert asked == ["asked"] and played.score == 1.0 and len(played.path) == 1
    played.check_views()
