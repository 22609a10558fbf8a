"""An expert that knows the gold: from a row of a data set to what it says in a trajectory.

No teacher model: plan and queries are made of the row's own evidences, supporting facts or decomposition. A query says
only what the question and earlier results say. What depends on anything but the row is not used, and a row of which no
sound trace can be made is refused with the reason.
"""

from coterie.datasets.answers import MusiqueRow
from coterie.datasets.rows import HotpotRow, QuestionRow, TwoWikiRow
from coterie.environments.workflow.expert_2wiki import trace_of_2wiki
from coterie.environments.workflow.expert_hotpot import trace_of_hotpot
from coterie.environments.workflow.expert_musique import trace_of_musique
from coterie.environments.workflow.steps import NoTrace
from coterie.environments.workflow.trace import Trace

NO_GOLD = "rows of this kind do not tell what is to be searched"


def trace_of(row: QuestionRow) -> Trace:
    """The trace of a row. Raises :class:`NoTrace` with a reason that can be counted."""
    match row:
        case TwoWikiRow():
            return trace_of_2wiki(row)
        case HotpotRow():
            return trace_of_hotpot(row)
        case MusiqueRow():
            return trace_of_musique(row)
    raise NoTrace(NO_GOLD)
