"""Histories that programs send: spliced tokens, context, branches, parallel conversations, siblings and retries."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.gateway import open_gateway
from coterie.environments.protocol import Shared
from coterie.models.chat import ChatRenderer
from tests.helpers.native_templates import NATIVE, make_native_tokenizer
from tests.helpers.play_native_calls import THOUGHTS, WRITE
from tests.helpers.play_programs import client_of, compact, make_program, play_program, wire_tool
from tests.helpers.play_scripts import advance, open_branches
from tests.helpers.script_games import Script

Echo = Callable[[dict[str, Any]], dict[str, Any]]
QUESTION = {"role": "user", "content": "What is there?"}


def renderer_of(template: str) -> ChatRenderer:
    return ChatRenderer(make_native_tokenizer(template))


def respaced(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            **call,
            "function": {**call["function"], "arguments": compact(call["function"]["arguments"])},
        }
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


ECHOES: dict[str, Echo] = {
    "as sent": lambda message: message,
    "other spaces": respaced,
    "without content": lambda message: (
        {**message, "content": None} if "tool_calls" in message else message
    ),
    "parts": lambda message: {
        **message,
        "content": [{"type": "text", "text": message["content"] or ""}],
    },
    "stripped": lambda message: {**message, "content": f"{(message['content'] or '').strip()}\n"},
}


def look_twice(session: Any, echo: Echo) -> str:
    """Ask a question, answer the calls of two replies, and ask again."""
    client, messages = client_of(session), [QUESTION]
    for _ in range(4):
        reply = client.chat.completions.create(
            model="agent", messages=messages, tools=[wire_tool()]
        )
        message = reply.choices[0].message.to_dict()
        message.pop("reasoning_content", None)
        messages.append(echo(message))
        for call in message.get("tool_calls", ()):
            what = json.loads(call["function"]["arguments"])["what"]
            messages.append(
                {"role": "tool", "tool_call_id": call["id"], "content": f"{what}: blue"}
            )
        if "tool_calls" not in message:
            messages.append({"role": "user", "content": "And now?"})
    return message["content"]


PAIRS = [*((template, "as sent") for template in NATIVE), *(("mistral", echo) for echo in ECHOES)]


@pytest.mark.parametrize("template, echo", PAIRS)
def test_echoed_replies_are_the_sampled_tokens(template: str, echo: str, tmp_path: Path) -> None:
    write, thought = WRITE[template], THOUGHTS.get(template, "")
    script = [
        write([("look", "1"), ("look", "2")]),
        "It is  blue.",
        write([("look", "3")]),
        "It is tall.",
    ]
    environment = make_program(
        tmp_path,
        lambda task, session: look_twice(session, ECHOES[echo]),
        "environment.reward=exact",
    )
    played = play_program(environment, renderer_of(template), lambda _, n: thought + script[n])
    played.check_views()
    kinds = [turn.speaker.kind for turn in played.path]
    assert kinds == ["agent", "tool", "agent", "environment", "agent", "tool", "agent"]
    # Templates that drop old thoughts rewrite history; all others only extend it.
    if not thought:
        assert len(played.rows()) == 1


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def ask(session: Any, *messages: dict[str, Any], model: str = "agent", **options: Any) -> str:
    client = client_of(session, max_retries=0)
    reply = client.chat.completions.create(model=model, messages=messages, **options)
    return reply.choices[0].message.content or ""


def edit_reply(session: Any) -> str:
    """Replace a reply by other words."""
    ask(session, QUESTION)
    return ask(session, QUESTION, say("assistant", "It is red."), say("user", "Sure?"))


def leave_out_reply(session: Any) -> str:
    """Leave out a reply that broke the format, as mini-swe-agent does."""
    first = ask(session, QUESTION)
    followed = (QUESTION, say("assistant", first), say("user", "Go on."))
    ask(session, *followed)
    return ask(session, *followed, say("user", "Write one action."))


def summarize(session: Any) -> str:
    """Replace old messages by a summary, and keep the last reply."""
    first = ask(session, QUESTION)
    second = ask(session, QUESTION, say("assistant", first), say("user", "And then?"))
    summary = say("user", "Summary: it is blue.")
    return ask(session, summary, say("assistant", second), say("user", "Go on."))


def run_in_parallel(session: Any) -> str:
    """Hold two conversations of one role in turn."""
    left, right = [say("user", "Left?")], [say("user", "Right?")]
    for messages in (left, right, left, right):
        messages.append(say("assistant", ask(session, *messages)))
        messages.append(say("user", "More?"))
    return ""


def vote(session: Any) -> str:
    """Ask for three replies at once, then continue with one of them."""
    reply = client_of(session).chat.completions.create(model="agent", messages=[QUESTION], n=3)
    texts = [choice.message.content or "" for choice in reply.choices]
    assert len({*texts}) == 3
    return ask(session, QUESTION, say("assistant", texts[1]), say("user", "Sure?"))


def ask_twice(session: Any) -> str:
    """Ask for a second sample with an equal request."""
    assert ask(session, QUESTION) != ask(session, QUESTION)
    return ""


def retry(session: Any) -> str:
    """Send a request again, as a client does after a broken connection."""
    first = ask(session, QUESTION)
    header = {"x-stainless-retry-count": "1"}
    assert ask(session, QUESTION, extra_headers=header) == first
    return ""


def add_stop(session: Any) -> str:
    """Add the stop string that the reply lost, as smolagents does."""
    stop = ["</code>", "Observation:"]
    text = ask(session, QUESTION, stop=stop)
    assert text == "<code>print(0)"
    return ask(session, QUESTION, say("assistant", f"{text}</code>"), say("user", "0"), stop=stop)


CASES: dict[str, tuple[Callable[[Any], str], str, list[int]]] = {
    # A program, the kinds of its turns (agent or environment), and the trained turns of each row.
    "an edited reply": (edit_reply, "aa", [1, 1]),
    "a reply that is left out": (leave_out_reply, "aeaea", [2, 1]),
    "a summary": (summarize, "aeaea", [2, 1]),
    "parallel conversations": (run_in_parallel, "aaeaea", [2, 2]),
    "three replies": (vote, "aaaea", [1, 2, 1]),
    "an equal request": (ask_twice, "aa", [1, 1]),
    "a retry": (retry, "a", [1]),
    "an added stop string": (add_stop, "aea", [2]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_sampled_token_is_trained_once_after_its_own_prompt(case: str, tmp_path: Path) -> None:
    run, kinds, targets = CASES[case]
    environment = make_program(
        tmp_path, lambda _, session: run(session), "environment.reward=exact"
    )
    script = "<code>print({})</code>" if run is add_stop else "Reply {}."
    played = play_program(environment, renderer_of("granite"), lambda _, n: script.format(n))
    played.check_views()
    assert "".join(turn.speaker.kind[0] for turn in played.path) == kinds
    assert [len(row.targets) for row in played.rows()] == targets


def test_replies_of_another_role_are_context(tmp_path: Path) -> None:
    def hand_off(task: Any, session: Any) -> str:
        """Continue with another model, whose history has the replies of the first, as the Agents SDK does."""
        client, messages = client_of(session), [say("system", "You sort."), QUESTION]
        reply = client.chat.completions.create(
            model="sorter", messages=messages, tools=[wire_tool()]
        )
        message = reply.choices[0].message.to_dict()
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        history = [say("system", "You answer."), QUESTION, message, result]
        first = ask(session, *history, model="solver", tools=[wire_tool()])
        # As a user message, a reply of another role is the recorded turn.
        return ask(session, say("user", first), model="sorter")

    environment = make_program(
        tmp_path, hand_off, "environment.reward=exact", "environment.roles=[sorter,solver]"
    )
    script = [WRITE["qwen2"]([("look", "1")]), "It is blue.", "Good."]
    renderer = renderer_of("qwen2")
    played = play_program(environment, renderer, lambda _, n: script[n])
    played.check_views("sorter", "solver")
    assert [turn.speaker.name for turn in played.path] == [
        "sorter",
        "program",
        "tools of solver",
        "solver",
        "sorter",
    ]
    (row,) = played.rows("solver")
    assert [turn.text for turn in played.path if turn.id == row.targets[0].turn] == ["It is blue."]
    # The template writes the call of the other role.
    prompt = renderer.decode(played.engine.heard[1][0])
    assert '<tool_call>\n{"name": "look", "arguments": {"what": "1"}}\n</tool_call>' in prompt


def test_a_branch_runs_the_program_again(tmp_path: Path) -> None:
    starts = []

    def run(task: Any, session: Any) -> float:
        starts.append(session.api_key)
        first = ask(session, QUESTION)
        last = ask(session, QUESTION, say("assistant", first), say("user", "Sure?"))
        return float(last == "yes")

    environment, replies = make_program(tmp_path, run), iter(["blue", "yes", "no"])
    (task,) = environment.tasks("train", 1, 0)

    async def play() -> list[float | None]:
        script = Script(lambda prompt: next(replies))
        async with (
            open_gateway() as gateway,
            open_branches(environment, task, script, Shared(gateway)) as branches,
        ):
            middle = await advance(branches, await branches.start())
            scores = []
            for _ in range(2):
                end = await advance(branches, middle)
                scores.append((await branches.grade(end)).score)
            assert branches.replays == 1
            return scores

    # The second branch gets the recorded first reply in a session of its own.
    assert asyncio.run(play()) == [1.0, 0.0] and len({*starts}) == 2
