"""Turns that no engine samples, under the prompts of this run: scripted agents, and paths of written turns.

A written turn has an author but no sample; its text is tokenized here, once. Its request is the prompt that the run's
own model would have received, so it can be trained on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Environment, State, messages_of
from coterie.models.chat import ChatRenderer
from coterie.record.tree import Task, Tree
from coterie.record.turn import Request, Speaker, Turn, make_turn
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.tools.calls import template_tools


def recorded_response(
    prompt: Prompt,
    context: AgentContext,
    text: str,
    author: str,
    renderer: ChatRenderer,
    *,
    end: bool = True,
) -> Response:
    """Return ``text`` by ``author`` as the agent's next turn. ``end=False``: it ends with a stop string of its own."""
    # The request is the prompt that the policy would get, so the turn can become a training target.
    prompt_ids = renderer.render(prompt.messages, prompt.tree, prompt.agent, tools=prompt.tools)
    request = prompt.request(prompt_ids, context)
    ids = renderer.encode_turn(text, end=end)
    parts = renderer.parts(renderer.format_turn(text), prompt.agent, author, ids)
    speaker, draw = Speaker("agent", prompt.agent), prompt.draw
    turn = make_turn(
        prompt.parent, speaker, parts, ids=ids, author=author, draw=draw, request=request.id
    )
    return Response(turn, request, len(turn.ids))


EXPERT = "expert"
Script = Callable[[Task], Sequence[str]]
"""Function that returns all messages of the agent for a task, in order."""


@dataclass(eq=False)
class ScriptedSampler:
    """Sampler that returns the messages of a script one by one."""

    renderer: ChatRenderer
    script: Script
    author: str = EXPERT

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the next message. Raises ``EngineError`` after the last, and for one that no policy could sample."""
        assert prompt.task is not None, "a script needs a task"
        messages = self.script(prompt.task)
        # The script continues after the agent's earlier turns on this path.
        index = sum(
            turn.speaker.kind == "agent" and turn.speaker.name == prompt.agent
            for turn in prompt.tree.path(prompt.parent)
        )
        if index >= len(messages):
            raise EngineError(
                f"the script of task {prompt.task.id} has {len(messages)} messages, but another is needed"
            )
        text = messages[index]
        # A policy stops at the first stop string, so it could never produce text after it.
        stopped = stopped_at(text, prompt.stop)
        if stopped not in (None, len(text)):
            raise EngineError(
                f"message {index + 1} of the script of task {prompt.task.id} continues after its stop string: "
                f"{text[:stopped][-40:]!r}"
            )
        reply = (text, self.author, self.renderer)
        return recorded_response(prompt, context, *reply, end=stopped is None)


def stopped_at(text: str, stops: Sequence[str]) -> int | None:
    """Return the end of the first stop string in a text; ``None`` without one."""
    return min((text.index(stop) + len(stop) for stop in stops if stop in text), default=None)


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """A turn to write for an actor."""

    actor: str
    text: str
    author: str
    """Who wrote it: ``data``, ``critic:NAME``, or the policy that sampled it elsewhere."""
    ids: tuple[int, ...] = ()
    """Sampled tokens, if any; else the text is tokenized."""


def write_path(
    environment: Environment,
    task: Task,
    tree: Tree,
    turns: Sequence[WrittenTurn],
    renderers: Mapping[str, ChatRenderer],
    draw: int = 0,
) -> list[Turn]:
    """Add a path of turns to the root of a tree and return them. Equal paths with the same ``draw`` are one branch."""
    path: list[Turn] = []
    for scripted in turns:
        state = State(task, 0, turns=tuple(path))
        messages = messages_of(environment, state, scripted.actor)
        parent = path[-1].id if path else tree.root
        renderer = renderers[scripted.actor]
        tools = template_tools(environment.syntax, environment.tools(state, scripted.actor))
        # Render the prompt that the policy would get here, so the row equals a sampled dialogue's.
        prompt = renderer.render(messages, tree, scripted.actor, tools=tools)
        # The request holds the whole prompt instead of a delta: there is no running prompt here.
        request = Request.make(scripted.actor, parent, None, prompt, messages, tools=tools)
        # The text of sampled tokens is final; written text gets the form that the template expects.
        text = scripted.text if scripted.ids else renderer.format_turn(scripted.text)
        speaker = Speaker("agent", scripted.actor)
        parts = renderer.parts(text, scripted.actor, "literal")
        ids, author = scripted.ids or renderer.encode_turn(scripted.text), scripted.author
        turn = make_turn(
            parent, speaker, parts, ids=ids, author=author, draw=draw, request=request.id
        )
        tree.add(turn, request)
        path.append(turn)
    return path
