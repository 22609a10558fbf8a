"""Candidates scored by a step critic: the packaged model against naive sums, and a scripted judge."""

import asyncio
import math
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import EngineError, Sampling
from coterie.models.adapters import add_head
from coterie.models.check import check
from coterie.models.loading import LoadedModel, load
from coterie.record.rows import Pair, Row, Target
from coterie.record.tree import Tree
from coterie.record.turn import Message
from coterie.rewards.critics import (
    HeadCritic,
    Judge,
    LikelihoodCritic,
    Situation,
    StepCritic,
    judge_question,
    read_verdict,
)
from coterie.training.losses import DPO, DPOSettings
from coterie.training.reference import LossModule, with_reference
from coterie.training.settings import TrainingSettings

SETTINGS = TrainingSettings(max_length=512, mixed_precision="no")


@cache
def tiny() -> LoadedModel:
    """The packaged model, for engines, which take a model over."""
    return load("tiny-exchange")


def engines(critic: LoadedModel) -> list[InProcessEngine]:
    return [InProcessEngine(one, policy="p", version="0") for one in (critic, tiny())]


def moved(seed: int) -> LoadedModel:
    """The packaged model with some noise: a critic that was trained, or the other of two."""
    loaded = load("tiny-exchange")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.01)
    return loaded


def prompt() -> tuple[int, ...]:
    messages = [Message.of("system", "You are Alice."), Message.of("user", "Which river is long?")]
    return tiny().renderer.render(messages, Tree("t", "rollout", 0), "Alice")


@cache
def candidates() -> tuple[tuple[int, ...], ...]:
    """Replies that the packaged model gives, all ids of each."""
    engine = InProcessEngine(tiny(), policy="tiny", version="0")
    said = asyncio.run(engine.sample(prompt(), range(6), Sampling(max_tokens=24)))
    return tuple(one.ids for one in said)


def naive(model, ids: tuple[int, ...], start: int) -> list[float]:
    """Log-probs of the ids from ``start`` on, by the model's plain forward pass."""
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(logprobs[place - 1, ids[place]]) for place in range(start, len(ids))]


@pytest.mark.parametrize("reduction", ["tokens", "none"])
def test_an_advantage_is_the_log_ratio_of_critic_and_reference(reduction):
    critic, reference = engines(model := moved(0))
    scorer: StepCritic = LikelihoodCritic(critic, reference, reduction)
    scores = asyncio.run(scorer.advantages(prompt(), candidates()))
    expected = []
    for ids in candidates():
        whole, start = (*prompt(), *ids), len(prompt())
        ratio = sum(naive(model.model, whole, start)) - sum(naive(tiny().model, whole, start))
        expected.append(ratio / (len(ids) if reduction == "tokens" else 1))
    assert scores == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 1e-2
    assert critic.stats.requests == 1, "one call scores all candidates"


def test_candidates_that_cannot_be_scored_are_errors():
    scorer = LikelihoodCritic(*engines(model := moved(0)))
    with pytest.raises(EngineError, match="non-empty continuations"):
        asyncio.run(scorer.advantages(prompt(), [()]))
    valued = load("tiny-exchange")
    with torch.no_grad():
        model.model.lm_head.weight.fill_(math.nan)
        add_head(valued.model).bias.fill_(math.nan)
    with pytest.raises(EngineError, match="not finite"):
        asyncio.run(LikelihoodCritic(*engines(model)).advantages(prompt(), candidates()))
    for some, problem in (
        (candidates(), "not all numbers"),
        ([(5,) * 100_000], "context overflow"),
        ([(5,), ()], "none of them empty"),
    ):
        with pytest.raises(EngineError, match=problem):
            asyncio.run(HeadCritic(valued, "mean").advantages(prompt(), some))


def trajectory(first: int, second: int, fact: str) -> Row:
    """Two own turns with what the user says between them."""
    between, start = tiny().renderer.encode_turn(fact), len(prompt())
    one, two = candidates()[first], candidates()[second]
    middle = start + len(one)
    last = middle + len(between)
    places = ((start, middle), (last, last + len(two)))
    targets = tuple(Target(*place, "tiny@0") for place in places)
    return Row((*prompt(), *one, *between, *two), targets)


def test_what_it_learns_from_is_the_sum_over_turns_of_what_it_scores(tmp_path):
    """Training (equation 2) and ranking (equation 3) agree on the advantage of a turn."""
    long, none = trajectory(0, 1, "It is long."), trajectory(2, 3, "No river is.")
    nile = (trajectory(4, 1, "The Nile."),), (trajectory(4, 5, "The Nile."),)
    pairs = [Pair((long,), (none,), group="a"), Pair(*nile, None, 0.5, "b")]
    items = with_reference(tiny().model, pairs, SETTINGS, tmp_path, reduction="turns")
    scorer = LikelihoodCritic(*engines(moved(0)))

    def score(row: Row) -> float:
        turns = [(row.ids[: t.start], row.ids[t.start : t.stop]) for t in row.targets]
        return sum(asyncio.run(scorer.advantages(p, [ids]))[0] for p, ids in turns)

    margins = [score(pair.chosen[0]) - score(pair.rejected[0]) for pair in items]
    objective = DPO(DPOSettings(beta=1.0, reduction="turns"))
    with torch.no_grad():
        losses = LossModule(moved(0).model, objective)(items)
    expected = [p.weight * math.log1p(math.exp(-m)) for p, m in zip(items, margins, strict=True)]
    assert losses.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("pool", ["mean", "last"])
def test_a_head_scores_candidates_as_one_by_one(pool, packed):
    loaded = load("tiny-exchange")
    head = add_head(loaded.model)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    rule = check(loaded.model).packing("auto") if packed else None
    scores = asyncio.run(HeadCritic(loaded, pool, rule).advantages(prompt(), candidates()))
    expected = []
    for ids in candidates():
        with torch.no_grad():
            hidden = loaded.model.model(torch.tensor([(*prompt(), *ids)])).last_hidden_state[0]
        own = hidden[len(prompt()) :]
        pooled = own.mean(0) if pool == "mean" else own[-1]
        expected.append(float(head.weight[0].detach() @ pooled))
    assert scores == pytest.approx(expected, abs=1e-3)
    assert len(set(scores)) > 1


# A judge.

HERE = Situation(
    "task-1/turn-2",
    "Write a function that rounds.",
    "def f(x): return x // 1",
    (("person", "I need rounding."), ("agent", "Up or down?"), ("person", "Down.")),
)


class Scripted:
    """A chat model that prefers the reply with the larger number; it stands in for a paid one."""

    def __init__(self, answer: str = "{}") -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, messages) -> str:
        await asyncio.sleep(0)
        text = messages[-1].text
        self.asked.append(text)
        a, b = (int(text.split(f"## Reply {x}\n")[1].split()[0]) for x in "AB")
        return self.answer.format("A" if a > b else "B")


def test_a_judge_ranks_by_the_share_of_comparisons_won():
    chat = Scripted()
    judge = Judge(chat, opponents=5)
    wins = asyncio.run(judge.wins(HERE, ["3", "9", "1", "7", "5", "2"]))
    assert wins == pytest.approx([0.4, 1.0, 0.0, 0.8, 0.6, 0.2])
    assert (judge.comparisons, judge.unreadable) == (30, 0)


def test_comparisons_are_few_fair_and_drawn_from_the_seed():
    replies = [str(number) for number in range(16)]

    def wins(here: Situation = HERE, **settings: int) -> tuple[list[float], list[str]]:
        chat = Scripted()
        return asyncio.run(Judge(chat, **settings).wins(here, replies)), chat.asked

    first, asked = wins(opponents=3)
    assert first == wins(opponents=3)[0] != wins(opponents=3, seed=1)[0]
    assert len(asked) == len(set(asked)) == 16 * 3
    for letter in "AB":
        shown = Counter(text.split(f"## Reply {letter}\n")[1].split()[0] for text in asked)
        assert set(shown.values()) == {3}, "each as often first as second"
    assert (first[15], first[0]) == (1.0, 0.0)
    _, elsewhere = wins(replace(HERE, key="task-1/turn-4"))
    assert set(elsewhere) != set(asked) and len(elsewhere) == 16 * 3, "three opponents by default"


def test_a_judge_is_shown_task_reference_conversation_and_both_replies():
    _, asked = judge_question(HERE, "one", "two")
    assert asked.text.split("\n\n") == [
        "## Task\nWrite a function that rounds.",
        "## Reference solution\ndef f(x): return x // 1",
        "## Conversation so far\nperson: I need rounding.\nagent: Up or down?\nperson: Down.",
        "## Reply A\none",
        "## Reply B\ntwo",
        "Which reply is better, A or B?",
    ]


def test_an_unreadable_answer_is_a_tie_and_counted():
    judge = Judge(Scripted("both are fine"), opponents=1)
    assert asyncio.run(judge.wins(HERE, ["1", "2", "3"])) == [0.5, 0.5, 0.5]
    assert (judge.comparisons, judge.unreadable) == (3, 3)

    async def only_sure_of_the_first(messages) -> str:
        text = messages[-1].text
        return "A" if "## Reply A\n2" in text else "both are fine"

    assert asyncio.run(Judge(only_sure_of_the_first).wins(HERE, ["1", "2"])) == [0.25, 0.75]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("A", "A"), (" b.\n", "B"), ("**B**", "B"), ("The first asks nothing.\nAnswer: B", "B"),
        ("Reply A asks nothing.\n\nB", "B"), ("A\nIt asks what is still unknown, and reply B asks nothing.", "A"),
        ("A\nOn second thought:\nB", None), ("Reply A is better.", "A"), ("The better answer is B", "B"),
        ("Reply A is better than reply B", None), ("A good question matters most here", None), ("", None),
    ],
)  # fmt: skip
def test_verdicts(answer, verdict):
    assert read_verdict(answer) == verdict
