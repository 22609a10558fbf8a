"""Dialogues that show how problems are solved with Python; a test runs their cells."""

from collections.abc import Iterator
from dataclasses import dataclass

from coterie.environments.acting.environment import SHOTS
from coterie.environments.acting.syntax import written_action, written_answer
from coterie.trajectories.turn import Message, Part, Role


@dataclass(frozen=True, slots=True)
class Shot:
    """A problem, one cell, and an answer."""

    problem: str
    plan: str
    """The thought before the cell."""
    cell: str
    seen: str
    """What the cell prints."""
    conclusion: str
    """The thought before the answer."""
    answer: str

    def messages(self) -> Iterator[Message]:
        said: tuple[tuple[Role, str], ...] = (
            ("user", problem_text(self.problem)),
            ("assistant", written_action(self.cell, self.plan)),
            ("user", self.seen),
            ("assistant", written_answer(self.answer, self.conclusion)),
        )
        for role, text in said:
            yield Message(role, (Part(text, source=SHOTS),))


def problem_text(question: str) -> str:
    return f"Problem: {question}"


NUMBERS = (
    Shot(
        "A baker makes 6 trays of 24 rolls every morning. She keeps 15 rolls for her family and sells the others for 2 "
        "dollars each. How many dollars does she earn in a week?",
        "First the rolls that are sold in a day, then the money of 7 days.",
        "sold = 6 * 24 - 15\nprint(sold * 2 * 7)",
        "1806",
        "She sells 129 rolls a day, which makes 258 dollars, and 1806 in a week.",
        "1806",
    ),
    Shot(
        "Nora reads 18 pages on Monday and twice as many on Tuesday. Her book has 150 pages. She wants to read as many "
        "pages on each of the next 4 days, and be done then. How many pages is that a day?",
        "The pages that are left, dealt to 4 days.",
        "monday = 18\ntuesday = 2 * monday\n(150 - monday - tuesday) / 4",
        "24.0",
        "96 pages are left, 24 for each day.",
        "24",
    ),
)
MATHEMATICS = (
    Shot(
        "How many positive integers less than 200 are divisible by neither 3 nor 5?",
        "There are few enough to count them.",
        "sum(1 for n in range(1, 200) if n % 3 and n % 5)",
        "107",
        "By inclusion and exclusion 199 - 66 - 39 + 13 = 107, which agrees.",
        "107",
    ),
    Shot(
        "A bag holds 5 red and 4 blue marbles. Two are drawn at random, and none is put back. What is the probability "
        "that both are blue?",
        "The first is blue in 4 of 9 cases, then the second in 3 of 8. I calculate with fractions, which are exact.",
        "from fractions import Fraction\nprint(Fraction(4, 9) * Fraction(3, 8))",
        "1/6",
        "The probability is one sixth.",
        r"\frac{1}{6}",
    ),
)
