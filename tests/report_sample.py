"""A made-up run for the tests of the report page, as large and as untidy as a real one."""

import random
import re

from coterie.reports.data import (
    AgentFacts,
    Conduct,
    Counts,
    DialogueView,
    Ended,
    Example,
    Failure,
    IterationPoint,
    RewardMeans,
    RewardPart,
    RewardSample,
    RunReport,
    Setting,
    Sibling,
    StageTime,
    TaskTree,
    TokenPiece,
    TreeTurn,
    TurnView,
)

SCORES = (0.612, 0.741, 0.868, 0.914, 0.932)
TOKENS = (142.3, 96.8, 51.2, 30.4, 24.1)


def sample_report(iterations: int = 4, samples: int = 800, failures: bool = True) -> RunReport:
    done = range(1, iterations + 1)
    points = [point for i in done for point in _samples(i, samples)]
    stages = (("rollout", 61.0), ("reward", 9.4), ("select", 0.3), ("train", 84.0))
    times = [StageTime(0, "evaluate", 22.5)]
    times += [StageTime(i, name, s * (1 - 0.12 * i)) for i in done for name, s in stages]
    times += [StageTime(i, "evaluate", 20.0 - 3 * i) for i in done]
    return RunReport(
        title="optima/isft on tiny-exchange",
        command="coterie run optima/isft model=tiny-exchange seed=0 iterations=4",
        model="tiny-exchange (2.1M weights)",
        seed=0,
        metric="F1",
        planned=4,
        counts=Counts(200, samples * iterations, 214 * iterations, 9_551 * iterations),
        settings=_settings(),
        iterations=tuple(
            IterationPoint(i, SCORES[i], SCORES[i] - 0.04, SCORES[i] + 0.035, TOKENS[i], 500)
            for i in (0, *done)
        ),
        rewards=tuple(means for i in done for means in _rewards(i)),
        conduct=tuple(Conduct(i, samples - i, 3 * i, 5, 1_204 + i, i) for i in done),
        samples=tuple(points),
        examples=tuple(examples()),
        trees=(task_tree(),),
        failures=_failures() if failures else (),
        timings=tuple(times),
    )


def empty_report() -> RunReport:
    return RunReport(
        title="optima/isft on tiny-exchange",
        command="coterie run optima/isft",
        model="tiny-exchange",
        seed=0,
        metric="F1",
        planned=3,
        counts=Counts(0, 0, 0, 0),
    )


def dialogue(
    iteration: int, turns: list[tuple[str, str]], answer: str | None, score: float, trained: bool
) -> DialogueView:
    """A dialogue whose tokens are pieces of at most five characters, the prefix untrained."""
    views = []
    for speaker, text in turns:
        pieces = [TokenPiece(f"{speaker}:", False)]
        pieces += [TokenPiece(t, trained) for t in re.findall(r"\s?[^\s]{1,5}|\s", text)]
        views.append(TurnView(speaker, tuple(pieces), len(pieces)))
    return DialogueView(iteration, tuple(views), answer, score, sum(v.tokens for v in views))


def examples() -> list[Example]:
    """Three tasks; the last has no dialogue after training."""
    facts = (
        AgentFacts("Alice", ("Nora friend: Omar", "Ivy pet: parrot", "Hugo city: Lima")),
        AgentFacts("Bob", ("Omar pet: tortoise", "Lena drink: cocoa", "Finn pet: rabbit")),
    )
    letter = [
        (
            "Alice",
            " Dear Bob, I hope that this letter finds you well. My facts say that the friend "
            "of Nora is Omar. I would be most grateful if you could look through your facts and "
            "let me know: what is the pet of Omar? With kind regards, Alice",
        ),
        (
            "Bob",
            " Dear Alice, many thanks for your quick and helpful reply. It is my pleasure to "
            "let you know that, as far as my own facts go, the pet of Omar is a tortoise. I "
            "therefore believe that the answer to our question should be <A>tortoise</A> With kind "
            "regards, Bob",
        ),
        (
            "Alice",
            " Thank you very much for your kind letter. I am glad to agree with you that the "
            "answer is <A>tortoise</A> With kind regards, Alice",
        ),
    ]
    arrow = [
        ("Alice", " Nora friend > Omar; Omar pet > ?"),
        ("Bob", " Omar pet > tortoise; <A>tortoise</A>"),
        ("Alice", " <A>tortoise</A>"),
    ]
    guess = [
        (
            "Alice",
            " Oh, I am quite sure about this one. There is no need to compare our facts.\n"
            "It must be <A>cocoa</A>",
        ),
        ("Bob", " You sound so very sure of yourself that I will not argue: <A>cocoa</A>"),
    ]
    hugo = [("Alice", " Hugo city > Lima; <A>Lima</A>"), ("Bob", " <A>Lima</A>")]
    return [
        Example(
            "heldout-0-L2-1",
            "What is the pet of the friend of Nora?",
            ("tortoise",),
            facts,
            dialogue(0, letter, "tortoise", 1.0, False),
            dialogue(4, arrow, "tortoise", 1.0, True),
        ),
        Example(
            "heldout-0-L1-2",
            "In which city does Hugo live?",
            ("Lima", "Lima, Peru"),
            facts,
            dialogue(0, guess, "cocoa", 0.0, False),
            dialogue(4, hugo, "Lima", 1.0, True),
        ),
        Example(
            "heldout-0-L1-4",
            "What does Lena drink?",
            ("cocoa",),
            facts,
            dialogue(0, guess, None, 0.0, False),
            None,
        ),
    ]


def task_tree(text: str = "Nora friend > Omar; Omar pet > ?") -> TaskTree:
    """Two ways to begin; the first parts again after two turns, and its ends make a pair too."""
    right, wrong = Ended("agreed", "tortoise", 1.0), Ended("no turns left", None, 0.0)
    ends = (
        TreeTurn(1, "Alice", "<A>tortoise</A>", 0.9, 2, (Sibling(2, 1.15),), (), right),
        TreeTurn(2, "Alice", "Is it?", -0.25, 1, (), (Sibling(1, 1.15),), wrong),
    )
    bob = TreeTurn(1, "Bob", "Omar pet > tortoise; <A>tortoise</A>", 0.52, 3, children=ends)
    guess = TreeTurn(1, "Bob", "As you say.", None, 0)
    first = (
        TreeTurn(1, "Alice", text, 0.52, 3, (Sibling(2, 0.3),), children=(bob,)),
        TreeTurn(2, "Alice", "It is cocoa.", 0.22, 1, (), (Sibling(1, 0.3),), children=(guess,)),
    )
    question, agents = "What is the pet of the friend of Nora?", ("Alice", "Bob")
    return TaskTree(2, "train-2-L2-5", question, ("tortoise",), agents, 0.445, 4, 2, first)


def _samples(iteration: int, count: int) -> list[RewardSample]:
    rng = random.Random(iteration)
    points = []
    for _ in range(count):
        tokens = max(8, int(rng.lognormvariate(5.0 - 0.45 * iteration, 0.55)))
        score = float(rng.random() < SCORES[iteration] - 0.08)
        loss_term = rng.gauss(0.42, 0.09)
        reward = score - 0.6 * min(1.0, tokens / 320) + loss_term
        selected = reward > 1.15 + 0.04 * iteration
        points.append(RewardSample(iteration, reward, tokens, score, selected))
    return points


def _rewards(iteration: int) -> list[RewardMeans]:
    task, tokens, loss = SCORES[iteration - 1], -0.47 + 0.02 * iteration, 0.38 + 0.02 * iteration
    rows = []
    for over, gain in (("all", 0.0), ("selected", 0.22 - 0.03 * iteration)):
        parts = (
            RewardPart("task", min(1.0, task + 1.4 * gain)),
            RewardPart("tokens", tokens + gain),
            RewardPart("loss", loss + gain / 3),
        )
        total = sum(part.mean for part in parts)
        rows.append(RewardMeans(iteration, over, parts, total))  # type: ignore[arg-type]
    return rows


def _settings() -> tuple[Setting, ...]:
    return tuple(
        Setting(name, value)
        for name, value in (
            ("rollout.samples", "8"),
            ("rollout.temperature", "0.7"),
            ("rollout.turns", "8"),
            ("reward.token_weight", "0.6"),
            ("reward.loss_weight", "1.0"),
            ("select.threshold", "0.5"),
            ("select.top", "0.7"),
            ("train.learning_rate", "3e-4"),
            ("train.epochs", "1"),
            ("train.batch_tokens", "4096"),
            ("evaluate.tasks", "500"),
            ("evaluate.temperature", "0"),
            ("model.path", "/work/runs/tiny/exchange/checkpoint-final"),
        )
    )


def _failures() -> tuple[Failure, ...]:
    return (
        Failure(
            1,
            "rollout",
            "turn reached the limit of 96 tokens without an end of turn",
            13,
            "1/rollout/train-0-L2-57/3",
        ),
        Failure(
            2, "reward", "engine did not answer within 60 s (3 tries)", 1, "2/reward/train-0-L1-8/0"
        ),
    )
