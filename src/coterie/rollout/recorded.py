"""Turns that somebody else wrote, said again under the prompts of this run.

Such a turn has no sample: its text is tokenised here, once, and its author is named. Its request is the
prompt that the run's own model would have been given in its place, so that the turn can be trained on.
"""

from coterie.models.chat import ChatRenderer
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.trajectories.turn import Part, Speaker, make_turn


def recorded(
    prompt: Prompt, context: AgentContext, text: str, author: str, renderer: ChatRenderer
) -> Response:
    """The agent's next turn is ``text``, written by ``author``; ``context`` is brought up to date."""
    prompt_ids = renderer.render(prompt.shown, prompt.tree, prompt.agent)
    request = prompt.request(prompt_ids, context)
    turn = make_turn(
        prompt.parent,
        Speaker("agent", prompt.agent),
        [Part(text, source=author)],
        ids=renderer.written(text),
        author=author,
        draw=prompt.draw,
        request=request.id,
    )
    response = Response(turn, request, len(turn.ids))
    context.add(response, prompt.shown)
    return response
