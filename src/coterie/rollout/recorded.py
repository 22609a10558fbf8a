"""Turns that somebody else wrote, said again under the prompts of this run, and where a path of such turns stands.

Such a turn has no sample: its text is tokenised here, once, and its author is named. Its request is the
prompt that the run's own model would have been given in its place, so that the turn can be trained on.
"""

from dataclasses import replace

from coterie.environments.faults import faults_of
from coterie.environments.protocol import Environment, Shared, State
from coterie.models.chat import ChatRenderer
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.rollout.transitions import arrive, left_after
from coterie.trajectories.turn import Speaker, Turn, make_turn


async def state_after(
    environment: Environment, state: State, turn: Turn, shared: Shared | None = None
) -> State:
    """The state of a pure environment after a recorded turn, whatever the environment would have said or done then.

    ``shared`` is what it needs to act, if it needs anything.

    An end is what the environment says of this turn; a path that was recorded may go on after it.
    """
    left = left_after(state.left or environment.limits, [turn])
    now = replace(state, turns=(*state.turns, turn), left=left, end=None)
    with faults_of(environment):
        found = await environment.act(now, (turn,), Shared() if shared is None else shared)
        then = arrive(turn.id, now, (turn,), replace(found, seen=(), rewards={}), {}, None)
    return then.position.state


def recorded(
    prompt: Prompt,
    context: AgentContext,
    text: str,
    author: str,
    renderer: ChatRenderer,
    *,
    ended: bool = True,
) -> Response:
    """The agent's next turn is ``text``, written by ``author``; ``context`` is brought up to date.

    ``ended``: whether the token that ends a turn follows; after a stop string it does not.
    """
    prompt_ids = renderer.render(prompt.shown, prompt.tree, prompt.agent, tools=prompt.tools)
    request = prompt.request(prompt_ids, context)
    ids = renderer.encode_turn(text, end=ended)
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
    context.add(response, prompt.shown)
    return response
