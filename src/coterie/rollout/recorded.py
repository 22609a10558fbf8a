"""Turns that somebody else wrote, said again under the prompts of this run.

Such a turn has no sample: its text is tokenised here, once, and its author is named. Its request is the
prompt that the run's own model would have been given in its place, so that the turn can be trained on.
"""

from coterie.models.chat import ChatRenderer
from coterie.rollout.voices import Ask, Memory, Said
from coterie.trajectories.turn import Part, Request, Speaker, make_turn


def recorded(ask: Ask, memory: Memory, text: str, author: str, renderer: ChatRenderer) -> Said:
    """The agent's next turn is ``text``, written by ``author``; ``memory`` is brought up to date."""
    prompt = renderer.render(ask.shown, ask.tree, ask.agent)
    request = Request.make(
        ask.agent, ask.parent, memory.turn, prompt, ask.shown, memory.ids, memory.messages
    )
    turn = make_turn(
        ask.parent,
        Speaker("agent", ask.agent),
        [Part(text, source=author)],
        ids=renderer.written(text),
        author=author,
        draw=ask.draw,
        request=request.id,
    )
    said = Said(turn, request, False, len(turn.ids))
    memory.hear(said, ask.shown)
    return said
