"""Histories that programs send, as prompts of recorded turns.

A program sends the whole conversation with each request. An echoed reply is matched to its recorded turn by the ids of
its calls, which the gateway chose, or else by its text, so that the prompt has the tokens that were sampled. A reply
that matches nothing was edited or written elsewhere, and is context that is never trained.

A request continues the recorded request of its role with which it shares most messages. Parallel conversations of a
role are apart, and a rewritten history is a branch of its conversation.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from coterie.environments.acting import ENVIRONMENT
from coterie.environments.openai_api import ModelReply, WireMessage
from coterie.environments.protocol import Observation
from coterie.models.call_syntaxes import THOUGHTS, text_before_calls
from coterie.record.turn import THOUGHT, Message, Part, Speaker, ToolCall, ToolResult, Turn, call_id

PROGRAM = Speaker("environment", "program")
"""Speaker of context that the program wrote in an assistant's place."""

Unit = tuple[WireMessage, ...]
"""Wire messages of one prompt message: a single one, or all results of one reply."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompted:
    """A request as a prompt, and the turn that answered it."""

    actor: str
    units: tuple[Unit, ...]
    messages: tuple[Message, ...]
    """Messages of the units. A message of :data:`NEW` stands for the next new observation."""
    stop: tuple[str, ...] = ()
    turn: Turn | None = None


NEW = Message("user", turn="new")
"""Placeholder for an observation whose turn has no id yet."""


def with_turns(prompted: Prompted, observations: Sequence[Turn]) -> Prompted:
    """Return the prompt with the ids of its new observations, which are all of ``observations``, in order."""
    ids = iter(observations)
    messages = tuple(
        replace(m, turn=next(ids).id) if m.turn == NEW.turn else m for m in prompted.messages
    )
    return replace(prompted, messages=messages)


def read_history(
    actor: str,
    wire: Sequence[WireMessage],
    stop: tuple[str, ...],
    past: Sequence[Prompted],
    turns: Sequence[Turn],
) -> tuple[Prompted, tuple[Observation, ...]]:
    """Return a request as a prompt, with observations for what its program added to the conversation.

    Args:
        actor: Role of the request.
        wire: Messages of the request.
        stop: Stop strings of the request.
        past: Answered requests of the session.
        turns: Turns of the session so far.
    """
    own_past = [prompted for prompted in past if prompted.actor == actor]
    units = tuple(_units(list(_without_additions(wire, own_past))))
    prefix, shared = _longest_prefix(units, own_past)
    # Histories repeat each other; equal beginnings are one object, so that a session takes space linear in its length.
    messages, units = list(prefix), (*shared, *units[len(shared) :])
    replies = _replies(units[len(messages) :], messages, own_past)
    seen = {
        unit: message
        for prompted in own_past
        for unit, message in zip(prompted.units, prompted.messages, strict=True)
        if message.turn is not None
    }
    turn_of_text = {t.text: t for t in turns if t.sample is not None and t.speaker.name != actor}
    # Messages after the last reply are new. Before it, or without one, it is the program's setting of the scene.
    last_reply = max((n for n, unit in enumerate(units) if unit[0].role == "assistant"), default=-1)
    continues = any(m.role == "assistant" and m.turn for m in messages) or bool(replies)
    observations: list[Observation] = []
    callers = [unit[0] for unit in units]
    for index in range(len(messages), len(units)):
        unit, role = units[index], units[index][0].role
        first, text = unit[0], unit[0].text
        observation: Observation | None = None
        if index in replies:
            messages.append(Message("assistant", turn=replies[index].id))
        elif role == "user" and text in turn_of_text:
            messages.append(Message("user", turn=turn_of_text[text].id))
        elif unit in seen and role in ("tool", "assistant"):
            messages.append(seen[unit])
        elif role == "tool":
            observation = _results(actor, unit, callers[:index])
        elif role == "assistant" and first.calls:
            calls = (replace(call, id=call_id(n)) for n, call in enumerate(first.calls))
            observation = Observation(PROGRAM, (Part(text),) if text else (), calls=tuple(calls))
        elif continues and index > last_reply:
            observation = Observation(ENVIRONMENT, (Part(text, source="environment"),))
        else:
            messages.append(Message.of(role, text))
        if observation is not None:
            observations.append(observation)
            messages.append(
                replace(NEW, role=role if observation.results or role != "tool" else "user")
            )
    return Prompted(actor, units, tuple(messages), stop), tuple(observations)


def _without_additions(
    wire: Sequence[WireMessage], past: Sequence[Prompted]
) -> Iterator[WireMessage]:
    """Yield the messages, with what a program has added to an echoed reply behind its stop string as a message.

    smolagents adds the call that it has read in a reply, behind the reply's stop string and another one.
    """
    stopped = [p for p in reversed(past) if p.turn is not None and p.turn.text.endswith(p.stop)]
    for message in wire:
        for prompted in stopped if message.role == "assistant" and not message.calls else ():
            reply = prompted.turn.text.lstrip() if prompted.turn else ""
            added = message.text.removeprefix(reply)
            if added != message.text and added.lstrip().startswith(prompted.stop):
                yield replace(message, text=reply)
                yield WireMessage("inline", added)
                break
        else:
            yield message


def _units(wire: Sequence[WireMessage]) -> Iterator[Unit]:
    for is_result, group in groupby(wire, lambda message: message.role == "tool"):
        unit = tuple(group)
        yield from (unit,) if is_result else ((message,) for message in unit)


def _longest_prefix(
    units: Sequence[Unit], past: Sequence[Prompted]
) -> tuple[tuple[Message, ...], tuple[Unit, ...]]:
    """Return the messages and the units of the longest beginning of a past conversation; of equal ones, the newest."""
    longest: tuple[Message, ...] = ()
    shared: tuple[Unit, ...] = ()
    for prompted in reversed(past):
        # The newest request of a conversation has the longest history, so most others are left out.
        if len(prompted.units) < len(longest):
            continue
        count = 0
        for unit, earlier in zip(units, prompted.units, strict=False):
            if unit != earlier:
                break
            count += 1
        messages = prompted.messages[:count]
        is_whole = count == len(prompted.units) and count < len(units)
        if is_whole and prompted.turn and _echoes(prompted, units[count][0]):
            messages += (Message("assistant", turn=prompted.turn.id),)
        if len(messages) > len(longest):
            longest, shared = messages, prompted.units[:count]
    return longest, shared


def _replies(
    units: Sequence[Unit], messages: Sequence[Message], past: Sequence[Prompted]
) -> dict[int, Turn]:
    """Return the recorded turns that assistant messages after a prefix echo, by index in the whole request.

    Turns are matched from the last to the first, in order, since programs leave out old replies first.
    """
    used = {message.turn for message in messages}
    candidates = [p for p in reversed(past) if p.turn is not None and p.turn.id not in used]
    replies: dict[int, Turn] = {}
    for index in range(len(units) - 1, -1, -1):
        if units[index][0].role != "assistant":
            continue
        for number, prompted in enumerate(candidates):
            if prompted.turn is not None and _echoes(prompted, units[index][0]):
                replies[len(messages) + index] = prompted.turn
                del candidates[: number + 1]
                break
    return replies


def _echoes(prompted: Prompted, message: WireMessage) -> bool:
    """Return True if a message is the reply to a request, unless its text or its calls were edited."""
    turn = prompted.turn
    if turn is None or message.role != "assistant":
        return False
    calls = sent_calls(turn)
    if [_meaning(call) for call in calls] != [_meaning(call) for call in message.calls]:
        return False
    # Programs leave out or change the text beside calls, but not the ids of calls.
    if calls and [call.id for call in calls] == [call.id for call in message.calls]:
        return True
    return _bare(message.text, prompted.stop) == _bare(
        sent_text(turn, prompted.stop), prompted.stop
    )


def _meaning(call: ToolCall) -> tuple[str, str]:
    """Return the name and the arguments of a call, regardless of spaces and the order of keys."""
    try:
        return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return call.name, call.arguments


def _bare(text: str, stop: Sequence[str]) -> str:
    """Return a text without surrounding white space and stop strings, which some programs add again."""
    text = text.strip()
    for ending in sorted(map(str.strip, stop), key=len, reverse=True):
        if ending and text.endswith(ending):
            return text.removesuffix(ending).rstrip()
    return text


def _results(actor: str, unit: Unit, earlier: Sequence[WireMessage]) -> Observation:
    """Return results as an observation that names their calls by position, as in native environments."""
    calls = next((m.calls for m in reversed(earlier) if m.role == "assistant"), ())
    positions = {call.id: call_id(number) for number, call in enumerate(calls)}
    ids = [positions.get(message.answers, "") for message in unit]
    # Results without calls, as after a summary, are plain text for the model.
    if not all(ids) or len(set(ids)) < len(ids):
        text = "\n".join(message.text for message in unit)
        return Observation(ENVIRONMENT, (Part(text, source="environment"),))
    results = (ToolResult(id_, message.text) for id_, message in zip(ids, unit, strict=True))
    return Observation(Speaker("tool", f"tools of {actor}"), results=tuple(results))


# -- replies ---------------------------------------------------------------------------------------


def sent_calls(turn: Turn) -> tuple[ToolCall, ...]:
    """Return the calls of a turn with the ids that the program gets, which name the turn."""
    return tuple(
        replace(call, id=f"call_{turn.id}_{number}", name=call.name or "unnamed")
        for number, call in enumerate(turn.calls)
    )


def sent_text(turn: Turn, stop: Sequence[str]) -> str:
    """Return the text that the program gets: without the thought, the calls and the stop string."""
    if sent_calls(turn):
        return text_before_calls(turn.text)
    ending = next((s for s in stop if turn.text.endswith(s)), "")
    return turn.text.removesuffix(ending)


def reply_of(turn: Turn, stop: Sequence[str], prompt_tokens: int) -> ModelReply:
    thought = "".join(part.text for part in turn.parts if part.source == THOUGHT)
    for begin, end in THOUGHTS.items():
        thought = thought.strip().removeprefix(begin).removesuffix(end)
    finish = turn.sample.finish if turn.sample else "length" if turn.truncated else "end"
    reply = (sent_text(turn, stop), thought.strip(), sent_calls(turn))
    return ModelReply(turn.id, *reply, finish, prompt_tokens, len(turn.ids))
