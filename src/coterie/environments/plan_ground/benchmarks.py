"""Conversion of rows without plans to tasks of a planner and a grounder, for evaluation."""

from coterie.datasets.plans import Domain, PlanRow, PlanStep
from coterie.datasets.problems import SvampRow
from coterie.datasets.rows import Gsm8kRow, HotpotRow, QuestionRow

READ: tuple[type[QuestionRow], ...] = (PlanRow, Gsm8kRow, SvampRow, HotpotRow)


class Unplanned(PlanRow):
    """A task without a plan."""

    steps: tuple[PlanStep, ...] = ()
    pages: tuple[tuple[str, str], ...] = ()
    """Titles and texts of the question's pages."""


def as_plan(row: QuestionRow) -> PlanRow:
    if isinstance(row, PlanRow):
        return row
    pages = _pages(row) if isinstance(row, HotpotRow) else ()
    domain = domain_in(row)
    return Unplanned(
        id=row.id, question=row.question, answer=row.answer, domain=domain, pages=pages
    )


def domain_in(row: QuestionRow) -> Domain:
    if isinstance(row, PlanRow):
        return row.domain
    assert isinstance(row, READ), "the type of a data set's rows was checked"
    return "complex_qa" if isinstance(row, HotpotRow) else "maths"


def _pages(row: HotpotRow) -> tuple[tuple[str, str], ...]:
    texts = ((one.title, row.glue.join(one.sentences).strip()) for one in row.context)
    return tuple((title, text) for title, text in texts if text)
