"""Outside preferences as pairs of the trainer: the policy's own chat template around text that no policy sampled."""

from coterie.datasets.preferences import PreferenceRow
from coterie.models.chat import ChatRenderer
from coterie.trajectories.pair import Pair
from coterie.trajectories.row import Row, Target
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message


def as_pair(row: PreferenceRow, renderer: ChatRenderer, name: str, agent: str) -> Pair:
    """A row of the set ``name`` as a pair; of each side the reply is the target, its end of turn included."""
    shown = [Message.of(role, text) for role, text in row.messages]
    prompt = renderer.render(shown, Tree(row.id, "mix", 0), agent)

    def side(reply: str) -> tuple[Row, ...]:
        ids = prompt + renderer.written(reply)
        target = Target(len(prompt), len(ids), f"data:{name}")
        return (Row(ids, (target,), origin=f"{name}/{row.id}"),)

    return Pair(side(row.chosen), side(row.rejected))
