"""A data set of tiny word problems with right plans and actions, for tests of planner and grounder."""

import random
from collections.abc import Iterator

from coterie.datasets.catalogue import Split
from coterie.datasets.plans import PlanRow, PlanStep

NAMES = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Fay")


class Plans:
    """Two steps each: somebody has more, then the total."""

    row = PlanRow
    environment = "plan_ground"

    def rows(self, split: Split) -> Iterator[PlanRow]:
        for number in range(20):
            yield problem(number if split == "train" else 100 + number)


def problem(number: int) -> PlanRow:
    rng = random.Random(number)
    one, other = rng.sample(NAMES, 2)
    has, more = 3 + number, rng.randint(2, 9)
    second = has + more
    return PlanRow(
        id=f"p{number}",
        question=f"{one} has {has} pens. {other} has {more} more. How many have both?",
        answer=str(has + second),
        domain="maths",
        steps=(
            PlanStep(
                subgoal=f"find what {other} has", actions=(f"R1 = Calculator({has} + {more})",),
                result=str(second),
            ),
            PlanStep(
                subgoal="add both", actions=(f"R2 = Calculator({has} + R1)",), result=str(has + second)
            ),
        ),
    )  # fmt: skip
