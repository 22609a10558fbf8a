"""The recipes ``optima/idpo`` and ``optima/isft_dpo`` end to end on the packaged model."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.protocol import Grade, State
from coterie.environments.talk import Talk
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Silent
from coterie.recipes.optima import Optima
from coterie.recipes.registry import recipe, settings
from coterie.recipes.report import run_report
from coterie.record.rows import view
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.items import TreeWriter, rollouts
from coterie.runs.loop import run_steps
from tests.by_hand import distance, turn_losses
from tests.conftest import SMALL, once

WORDS = once(
    *SMALL, "iterations=2", "dpo.tasks=3", "dpo.probe=4", "dpo.search.searches=3",
    "dpo.select.theta_filter=-100", "dpo.select.theta_diff=0", "dpo.train.batch_rows=1000",
    "dpo.train.learning_rate=1e-6",
)  # fmt: skip
"""All pairs in one small step of DPO: its loss is that of the policy as it was."""


def opened(words: tuple[str, ...] = WORDS, name: str = "optima/idpo") -> Optima:
    found = recipe(settings(name, words))
    assert isinstance(found, Optima)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A finished run of one iteration of SFT and one of DPO."""
    own = opened()
    with open_run(tmp_path_factory.mktemp("idpo") / "run", own.name, own.settings) as made:
        run_steps(own, made, Silent())
        yield made


def test_each_method_has_its_order_of_iterations() -> None:
    assert settings("optima/isft", ["iterations=3"]).kinds() == ["sft", "sft", "sft"]
    assert settings("optima/idpo", ["iterations=3"]).kinds() == ["sft", "dpo", "dpo"]
    assert settings("optima/isft_dpo", ["iterations=4"]).kinds() == ["sft", "dpo", "sft", "dpo"]


def test_pairs_are_siblings_under_one_prompt_and_compare_the_last_turn_only(run: Run) -> None:
    own = opened()
    found = list(own.pairs(run, 1))
    assert len(found) == run.metrics(Step(1, "select"))["selected"] > 0
    assert run.metrics(Step(1, "train"))["rows"] == len(found)
    for pair in found:
        (chosen,), (rejected,) = pair.chosen, pair.rejected
        (good,), (bad,) = chosen.targets, rejected.targets
        tree = run.store.tree(1, "rollout", pair.group)
        assert tree.turns[good.turn].parent == tree.turns[bad.turn].parent
        assert chosen.ids[: good.start] == rejected.ids[: bad.start]
        assert chosen.ids[good.start :] == tree.turns[good.turn].ids
        assert good.writer == bad.writer == "policy@1"


@pytest.mark.slow
def test_an_adapter_that_sft_trained_goes_on_under_dpo_and_is_its_reference(tmp_path: Path) -> None:
    lora = ("train.method=lora", "train.learning_rate=0.01")
    own = opened((*WORDS, *lora))
    with open_run(tmp_path / "run", own.name, own.settings) as made:
        run_steps(own, made, Silent())
        assert made.metrics(Step(2, "evaluate"))["n"] == 4
        base, before, after = (own.load_policy(made, version) for version in range(3))
        assert 0 < distance(after, before) < distance(before, base) / 10 < distance(after, base)
        expected = math.log(2) + mean_nll(made, own, before)
        assert made.metrics(Step(1, "train"))["loss"] == pytest.approx(expected, abs=1e-4)
        assert (made.training_folder(1) / "final/adapter_config.json").is_file()


def mean_nll(run: Run, own: Optima, policy: LoadedModel) -> float:
    """The mean over pairs of the chosen turn's mean loss under a policy."""
    losses = []
    for task, selection in run.store.selections(1, "select"):
        shown = view(run.store.tree(1, "rollout", task), selection.leaf, selection.agent)
        losses.append(turn_losses(policy, shown)[selection.leaf])
    return sum(losses) / len(losses)


def test_the_report_shows_the_dialogues_and_the_turns_that_were_chosen(run: Run) -> None:
    sections = {section.id: section for section in run_report(opened(), run).sections}
    pairs = dict.fromkeys(task for task, _ in run.store.selections(1, "select"))
    first, second = (sections[f"selected-{i}"].examples for i in (0, 1))
    assert {one.task for one in second} <= {*pairs} and second
    for one in second:
        values = [float(dict(sample.facts).get("value", "-inf")) for sample in one.samples]
        assert values == sorted(values, reverse=True)
        sides = {sample.side for sample in one.samples if sample.trained}
        assert "rejected" in sides and any(side.startswith("chosen") for side in sides)
    for one in first:
        (trained,) = [sample for sample in one.samples if sample.trained]
        facts = dict(trained.facts)
        terms = [float(value) for name, value in facts.items() if name.startswith("= ")]
        assert float(facts["reward"]) == pytest.approx(sum(terms), abs=0.005)
        assert len(trained.stretches) == 2, "the views of both agents"


class Interrupt(Exception):
    pass


@pytest.mark.slow
def test_a_run_cut_off_between_searches_equals_one_that_was_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, whole = opened(), TreeWriter.record
    left = [4]

    def record(self: TreeWriter, *arguments: Any) -> None:
        if not left[0]:
            raise Interrupt
        left[0] -= 1
        whole(self, *arguments)

    monkeypatch.setattr(TreeWriter, "record", record)
    with open_run(tmp_path / "cut", own.name, own.settings) as cut:
        with pytest.raises(Interrupt):
            run_steps(own, cut, Silent())
        assert sum(len(played) for played in rollouts(cut.store, 1).values()) == 4 * 3
        left[0] = 1000
        run_steps(opened(), cut, Silent())
        assert rollouts(cut.store, 1) == rollouts(run.store, 1)
        for step in opened().steps():
            mine, other = dict(cut.metrics(step)), dict(run.metrics(step))
            assert mine | {"seconds": 0} == other | {"seconds": 0}, step


def test_a_dialogue_that_cannot_be_graded_has_no_reward_and_its_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, grade = opened(), Talk.grade

    async def graded(self: Talk, state: State, live: Any) -> Grade:
        lost = int(state.turns[-1].id, 16) % 3 == 0
        return Grade(None) if lost else await grade(self, state, live)

    monkeypatch.setattr(Talk, "grade", graded)
    with open_run(tmp_path / "run", own.name, own.settings) as made:
        run_steps(own, made, Silent())
        found = [one for played in rollouts(made.store, 1).values() for one in played]
        lost = [one for one in found if one.leaf is None]
        metrics = made.metrics(Step(1, "rollout"))
        assert 0 < len(lost) == metrics["failed"] < len(found) == metrics["n"] == 27
        assert all("could not be graded" in str(one.failure) for one in lost)
        ends = {
            (task, one.search, one.leaf is None)
            for task, played in rollouts(made.store, 1).items()
            for one in played
        }
        assert any((*search, not lost) in ends for *search, lost in ends), "a search goes on"
        outcomes = [o for t in made.store.trees(1, "rollout") for o in t.outcomes.values()]
        assert outcomes and all(outcome.score is not None for outcome in outcomes)
        assert made.metrics(Step(2, "evaluate"))["n"] == 4


def test_no_pair_is_an_error_that_says_what_to_do(run: Run, tmp_path: Path) -> None:
    own = opened((*WORDS, "dpo.select.theta_filter=1.3", "rollout.max_tokens=16"))
    with open_run(tmp_path / "none", own.name, own.settings) as made:
        with pytest.raises(UserError, match=r"theta_filter=1\.3") as error:
            run_steps(own, made, Silent())
        assert "--fork" in error.value.todo


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["iterations=1"], "has no DPO iteration"),
    ],
)
def test_what_cannot_work_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings("optima/idpo", words)


def test_the_plan_checks_what_only_dpo_needs() -> None:
    long = settings("optima/idpo", ["dpo.train.max_length=2048", "dpo.tasks=3"])
    with pytest.raises(UserError, match=r"dpo\.train\.max_length=2048 is more than") as error:
        recipe(long).plan()
    assert error.value.todo == "use dpo.train.max_length=1024 or less"
    # SFT: 4 tasks, 2 samples; DPO: 3 trees of 3 searches with 3 rollouts, and 4 to probe
    assert opened().plan().dialogues == 4 * 2 + 3 * 9 + 4
