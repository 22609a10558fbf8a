"""Turns of another author, placed under the prompts of this run, and the environment's state after them.

Such a turn has an author but no sample; its text is tokenized here, once. Its request is the prompt that the run's own
model would have received, so it can be trained on. It ends with its stop string, or else with the end-of-turn token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Environment, Shared, State, faults_of, messages_of
from coterie.models.chat import ChatRenderer
from coterie.record.tree import Task, Tree
from coterie.record.turn import Request, Speaker, Turn, make_turn
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.rollout.transitions import left_after, make_step_result
from coterie.tools.calls import template_tools


async def state_after(
    environment: Environment, state: State, turn: Turn, shared: Shared | None = None
) -> State:
    """Return the state of a pure environment after a recorded turn, without the environment's observations.

    The state ends if the environment ends it at this turn, even if the recorded path continues.
    """
    left = left_after(state.left or environment.limits, [turn])
    now = replace(state, turns=(*state.turns, turn), left=left, end=None)
    with faults_of(environment):
        transition = await environment.act(now, (turn,), Shared() if shared is None else shared)
        silent = replace(transition, seen=(), rewards={})
        return make_step_result(turn.id, now, (turn,), silent, {}, None).position.state


def recorded_response(
    prompt: Prompt,
    context: AgentContext,
    text: str,
    author: str,
    renderer: ChatRenderer,
    *,
    end: bool = True,
) -> Response:
    """Return ``text`` by ``author`` as the agent's next turn, and update ``context``.

    Pass ``end=False`` for a turn that ends with a stop string instead of the end-of-turn token.
    """
    prompt_ids = renderer.render(prompt.messages, prompt.tree, prompt.agent, tools=prompt.tools)
    request = prompt.request(prompt_ids, context)
    ids = renderer.encode_turn(text, end=end)
    turn = make_turn(
        prompt.parent,
        Speaker("agent", prompt.agent),
        renderer.parts(renderer.format_turn(text), prompt.agent, author, ids),
        ids=ids,
        author=author,
        draw=prompt.draw,
        request=request.id,
    )
    response = Response(turn, request, len(turn.ids))
    context.add(response, prompt.messages)
    return response


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
        """Return the next message.

        Raises:
            EngineError: The script has no more messages, or a policy could not have sampled this one.
        """
        assert prompt.task is not None, "a script needs a task"
        messages = self.script(prompt.task)
        place = sum(
            turn.speaker.kind == "agent" and turn.speaker.name == prompt.agent
            for turn in prompt.tree.path(prompt.parent)
        )
        if place >= len(messages):
            raise EngineError(
                f"the script of task {prompt.task.id} has {len(messages)} messages, but another is needed"
            )
        text = messages[place]
        stopped = stopped_at(text, prompt.stop)
        if stopped not in (None, len(text)):
            raise EngineError(
                f"message {place + 1} of the script of task {prompt.task.id} continues after its stop string: "
                f"{text[:stopped][-40:]!r}"
            )
        return recorded_response(
            prompt, context, text, self.author, self.renderer, end=stopped is None
        )


def stopped_at(text: str, stops: Sequence[str]) -> int | None:
    """Return the end of the first stop string in a text; ``None`` without one."""
    return min((text.index(one) + len(one) for one in stops if one in text), default=None)


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
    """Add a path of turns to the root of a tree, each with its request, and return them.

    Equal paths with the same ``draw`` are one branch.
    """
    path: list[Turn] = []
    for one in turns:
        state = State(task, 0, turns=tuple(path))
        messages = messages_of(environment, state, one.actor)
        parent = path[-1].id if path else tree.root
        renderer = renderers[one.actor]
        tools = template_tools(environment.syntax, environment.tools(state, one.actor))
        prompt = renderer.render(messages, tree, one.actor, tools=tools)
        request = Request.make(one.actor, parent, None, prompt, messages, tools=tools)
        text = one.text if one.ids else renderer.format_turn(one.text)
        turn = make_turn(
            parent,
            Speaker("agent", one.actor),
            renderer.parts(text, one.actor, "literal"),
            ids=one.ids or renderer.encode_turn(one.text),
            author=one.author,
            draw=draw,
            request=request.id,
        )
        tree.add(turn, request)
        path.append(turn)
    return path
