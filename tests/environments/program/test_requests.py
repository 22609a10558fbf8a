"""OpenAI's protocols over HTTP: streams, responses, limits, usage and refusals."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from coterie.environments import gateway
from coterie.models.chat import ChatRenderer
from tests.helpers.native_templates import make_native_tokenizer
from tests.helpers.play_native_calls import WRITE, Said
from tests.helpers.play_programs import (
    PlayedProgram,
    client_of,
    make_program,
    play_program,
    wire_tool,
)

USER = {"role": "user", "content": "What is there?"}
TOOL = wire_tool()
FLAT_TOOL = {"type": "function", **TOOL["function"], "strict": False}
CALL = WRITE["qwen2"]([("look", "1")])


def play(
    folder: Path, run: Callable[[Any], Any], script: list[Any], *overrides: str, **options: Any
) -> PlayedProgram:
    environment = make_program(folder, lambda _, session: run(session), *overrides)
    renderer = ChatRenderer(make_native_tokenizer("qwen2"))
    return play_program(environment, renderer, lambda _, number: script[number], **options)


def stream_chat(session: Any) -> float:
    """Call a tool by streamed replies."""
    client, messages = client_of(session), [USER]
    seen: list[Any] = []
    for _ in range(2):
        with client.chat.completions.stream(
            model="agent", messages=messages, tools=[TOOL], stream_options={"include_usage": True}
        ) as stream:
            completion = stream.get_final_completion()
        message = completion.choices[0].message
        assert completion.usage and completion.usage.completion_tokens > 0
        calls = message.tool_calls or []
        messages.append({"role": "assistant", "content": message.content, "tool_calls": [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in calls
        ]} if calls else {"role": "assistant", "content": message.content})  # fmt: skip
        messages += [{"role": "tool", "tool_call_id": c.id, "content": "blue"} for c in calls]
        seen.append(
            (
                message.content,
                [c.function.arguments for c in calls],
                completion.choices[0].finish_reason,
            )
        )
    assert seen == [(None, ['{"what": "1"}'], "tool_calls"), ("It is blue.", [], "stop")]
    return 1.0


def respond(session: Any, *, streams: bool) -> float:
    """Call a tool by responses, with items as the Agents SDK echoes them."""
    client, items, kinds = client_of(session), [USER], []
    for _ in range(2):
        options: Any = {
            "model": "agent",
            "input": items,
            "tools": [FLAT_TOOL],
            "instructions": "Be brief.",
        }
        if streams:
            with client.responses.stream(**options) as stream:
                response = stream.get_final_response()
        else:
            response = client.responses.create(**options)
        assert (
            response.usage.total_tokens
            == response.usage.input_tokens + response.usage.output_tokens
        )
        for item in response.output:
            kinds.append(item.type)
            items.append(item.to_dict())
            if item.type == "function_call":
                output = {"type": "function_call_output", "call_id": item.call_id, "output": "blue"}
                items.append(output)
    assert kinds == ["function_call", "message"] and response.output_text == "It is blue."
    return 1.0


PROTOCOLS: dict[str, Callable[[Any], Any]] = {
    "a streamed chat": stream_chat,
    "responses": lambda session: respond(session, streams=False),
    "streamed responses": lambda session: respond(session, streams=True),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_and_results_pass_in_each_protocol(protocol: str, tmp_path: Path) -> None:
    played = play(tmp_path, PROTOCOLS[protocol], [CALL, "It is blue."])
    assert played.score == 1.0
    played.check_views()
    (row,) = played.rows()
    assert [turn.speaker.kind for turn in played.path] == ["agent", "tool", "agent"]
    assert len(row.targets) == 2


def test_limits_and_usage_are_those_of_the_sampled_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usages = []

    def run(session: Any) -> float:
        client = client_of(session)
        for limits in ({"max_tokens": 7}, {"max_completion_tokens": 9}, {}):
            reply = client.chat.completions.create(
                model="agent", messages=[USER], temperature=0, **limits
            )
            usages.append((reply.usage.prompt_tokens, reply.usage.completion_tokens))
            assert reply.choices[0].finish_reason == "length"
        return 1.0

    played = play(tmp_path, run, [Said("cut", cut=True)] * 3, max_tokens=50)
    heard = [(len(prompt), len(completion.ids)) for prompt, completion in played.engine.heard]
    assert usages == heard
    assert [s.max_tokens for s in played.engine.samplings] == [7, 9, 50]
    # The run's own temperature wins, which is said once.
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["the program asks for temperature=0; the run samples with 1"]


BODY: dict[str, Any] = {"model": "agent", "messages": [USER]}
BROKEN_TOOL = {"type": "function", "function": {"name": "x", "parameters": {"type": "number"}}}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
REFUSED: dict[str, tuple[Any, int, str]] = {
    # A body, the status, and a part of the message.
    "another model": ({**BODY, "model": "gpt-5"}, 404, "the models are: agent"),
    "no JSON": (b"\xff{", 400, "not JSON"),
    "half a character": (b'{"model": "agent", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, "not JSON"),
    "a list": ([1], 400, "not an object"),
    "no messages": ({**BODY, "messages": []}, 400, "messages"),
    "messages that are numbers": ({**BODY, "messages": [1, 2]}, 400, "can't be read"),
    "an image": ({**BODY, "messages": [{"role": "user", "content": IMAGE}]}, 400, "only text"),
    "an unknown role": ({**BODY, "messages": [{"role": "critic", "content": ""}]}, 400, "no role 'critic'"),
    "a format": ({**BODY, "response_format": {"type": "json_object"}}, 400, "not supported"),
    "log-probs": ({**BODY, "logprobs": True}, 400, "not supported"),
    "a broken tool": ({**BODY, "tools": [BROKEN_TOOL]}, 400, "can't be used"),
    "a hosted tool": ({**BODY, "tools": [{"type": "web_search"}]}, 400, "only functions"),
    "a limit without end": (json.dumps({**BODY, "max_tokens": 1e999}).encode(), 400, "can't be read"),
    "too many replies": ({**BODY, "n": 1000}, 400, "out of range"),
}  # fmt: skip


def test_refusals_are_errors_of_openais_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "MAX_BYTES", 100_000)
    replies: dict[str, tuple[int, Any]] = {}

    def run(session: Any) -> float:
        head = {"Authorization": f"Bearer {session.api_key}"}
        with httpx2.Client(headers=head) as client:
            url = f"{session.base_url}/chat/completions"
            for name, (body, _, _) in REFUSED.items():
                given = {"content": body} if isinstance(body, bytes) else {"json": body}
                reply = client.post(url, **given)
                replies[name] = reply.status_code, reply.json()["error"]["message"]
            assert client.post(url, content=b" " * 200_000).status_code == 413
            pieces = (b" " * 50_000 for _ in range(4))
            assert client.post(url, content=pieces).status_code == 413
            other = client.post(url, json=BODY, headers={"Authorization": "Bearer other"})
            assert other.status_code == 401
            root = session.base_url.partition("/sessions")[0]
            assert client.get(f"{root}/v2/models").json()["error"]["message"]
            # The key alone names the session, too.
            assert [m["id"] for m in client.get(f"{root}/v1/models").json()["data"]] == ["agent"]
            assert client.post(f"{root}/v1/chat/completions", json=BODY).status_code == 200
        return 1.0

    played = play(tmp_path, run, ["It is blue."])
    assert played.score == 1.0
    for name, (_, status, text) in REFUSED.items():
        assert replies[name][0] == status and text in replies[name][1], name
    # Nothing that was refused is a turn.
    assert len(played.path) == 1


def test_a_prompt_that_exceeds_the_context_is_refused_and_can_be_shortened(tmp_path: Path) -> None:
    codes = []

    def run(session: Any) -> float:
        client = client_of(session)
        client.chat.completions.create(model="agent", messages=[USER])
        try:
            client.chat.completions.create(
                model="agent", messages=[{"role": "user", "content": "long " * 2000}]
            )
        except openai.BadRequestError as error:
            codes.append(error.code)
        client.chat.completions.create(
            model="agent", messages=[{"role": "user", "content": "Short."}]
        )
        return 0.5

    played = play(tmp_path, run, ["It is blue."] * 2, context=500)
    assert codes == ["context_length_exceeded"] and played.score == 0.5
    assert [turn.speaker.name for turn in played.path] == ["agent", "gateway", "agent"]
    played.check_views()


def test_a_text_that_can_not_fit_is_refused_before_it_is_tokenized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, render = list[int](), ChatRenderer.render

    def note_size(self: ChatRenderer, messages: Any, tree: Any, *args: Any, **options: Any) -> Any:
        new = [tree.turns[m.turn].text for m in messages if m.turn]
        sizes.append(sum(map(len, new)) + sum(len(p.text) for m in messages for p in m.parts))
        return render(self, messages, tree, *args, **options)

    monkeypatch.setattr(ChatRenderer, "render", note_size)
    answers = list[Any]()

    def run(session: Any) -> float:
        client, long = client_of(session), {"role": "user", "content": "x" * 200_000}
        reply = client.chat.completions.create(model="agent", messages=[USER])
        echo = {"role": "assistant", "content": reply.choices[0].message.content}
        for messages in ([long], [USER, echo, long]):
            with pytest.raises(openai.BadRequestError) as refusal:
                client.chat.completions.create(model="agent", messages=messages)
            answers.append(refusal.value)
        return 1.0

    assert play(tmp_path, run, ["It is blue."], context=1000).score == 1.0
    assert [answer.code for answer in answers] == ["context_length_exceeded"] * 2
    assert all("characters long" in answer.message for answer in answers)
    assert max(sizes) < 1000


def test_a_program_that_ignores_the_context_ends_there(tmp_path: Path) -> None:
    def run(session: Any) -> float:
        client = client_of(session)
        client.chat.completions.create(model="agent", messages=[USER])
        while True:
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(
                    model="agent", messages=[{"role": "user", "content": "long " * 2000}]
                )

    played = play(tmp_path, run, ["It is blue."], context=500)
    assert played.score == 0.0 and played.result.tree is not None
    (outcome,) = played.result.tree.outcomes.values()
    assert outcome.ending.reason == "context"
