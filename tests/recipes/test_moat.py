"""``moat`` through its recipe, on a few word problems and a tiny model: rewards, pairs, corrections, J, roles."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch

from coterie.cli.report import write_report
from coterie.environments.plans.plan_ground import GROUNDER, PLANNER, gold, known_results
from coterie.environments.protocol import State
from coterie.models.loading import LoadedModel
from coterie.progress import Silent
from coterie.recipes import moat as moat_recipe
from coterie.recipes.moat import HALF, WHOLE, Moat
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.rows import prompts
from coterie.record.tree import Ending, Outcome, Tree
from coterie.record.turn import Part, Speaker, Turn, make_turn
from coterie.rewards.critics import Correction
from coterie.runs.loop import fork, run_stages
from coterie.runs.roles import Roles
from coterie.runs.run import Run, StageKey, open_run, write_config
from tests.helpers.read_page import chart_of, read_page, sections_of
from tests.helpers.web_tasks import write_tasks

TRAIN = ("batch_size=4", "max_length=1024", "learning_rate=2e-3")
SMALL = (
    "dataset=tests/helpers/plans.py:Plans", "model=tiny-exchange", "iterations=1", "engine.device=cpu",
    "rollout.tasks=4", "rollout.rollouts_per_task=4", "rollout.max_tokens=40", "start.tasks=6",
    "measure.tasks=3", "measure.rollouts_per_task=2", "evaluate.tasks=2", "pairs.margin=0.01",
    *(f"{stage}.train.{word}" for stage in ("start", "align", "improve") for word in TRAIN),
)  # fmt: skip


def made(*overrides: str) -> Moat:
    recipe = recipe_of(settings("moat/maths", [*SMALL, *overrides]))
    assert isinstance(recipe, Moat)
    return recipe


@contextmanager
def whole(
    folder: Path, *overrides: str, source: Run | None = None, steps: list[StageKey] | None = None
) -> Iterator[tuple[Moat, Run]]:
    """Run the recipe, or some steps of it in a fork of a run; open the run for reading."""
    recipe = made(*overrides)
    if source is not None:
        fork(recipe, source.folder, folder, recipe.settings)
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), steps)
    with open_run(folder, recipe.name, recipe.settings, write=False) as run:
        yield recipe, run
        recipe.close()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Moat, Run]]:
    with whole(tmp_path_factory.mktemp("moat") / "run") as result:
        yield result


@cache
def model(folder: Path, role: str, version: int) -> LoadedModel:
    recipe = made()
    with open_run(folder, recipe.name, recipe.settings, write=False) as run:
        return Roles(recipe.roles(), recipe.settings.engine, run).load(role, version)


def likelihood(recipe: Moat, run: Run, plan: Turn, tree: Tree, role: str, version: int) -> float:
    """Mean log-prob of the right actions after a plan, by a plain forward pass."""
    loaded, task = model(run.folder, role, version), run.store.task(tree.task)
    shown = recipe.environment.observe(State(task, 0, turns=(plan,)), GROUNDER)
    prompt = loaded.renderer.render(shown, tree, GROUNDER)
    target = loaded.renderer.encode_turn(gold(task).actions)
    with torch.no_grad():
        logprobs = loaded.model(torch.tensor([[*prompt, *target]])).logits[0].log_softmax(-1)
    found = [logprobs[len(prompt) - 1 + n, token] for n, token in enumerate(target)]
    return float(torch.stack(found).double().mean())


def rewards(recipe: Moat, run: Run, name: str = "reward") -> dict[str, float]:
    key = recipe.fingerprint(StageKey(1, "reward"))
    return run.store.credit(key, name, iteration=1, stage="rollout")


def trees(run: Run, stage: str = "rollout") -> list[Tree]:
    return list(run.store.trees(1, stage))


def test_a_plan_is_worth_what_the_grounder_makes_of_the_right_actions(done):
    recipe, run = done
    worth = rewards(recipe, run)
    assert worth
    for tree in trees(run)[:2]:
        for plan in tree.children(tree.root):
            if plan.id in worth:
                right = likelihood(recipe, run, plan, tree, GROUNDER, 1)
                assert worth[plan.id] == pytest.approx(right, abs=1e-4)
                other = likelihood(recipe, run, plan, tree, PLANNER, 1)
                assert abs(worth[plan.id] - other) > 1e-3, "by the grounder, not by the planner"


def test_a_pair_is_the_best_and_the_worst_plan_of_a_task(done):
    recipe, run = done
    worth = rewards(recipe, run)
    chosen = dict(run.store.selections(1, "select"))
    assert chosen
    for tree in trees(run):
        own = {plan.id: worth[plan.id] for plan in tree.children(tree.root) if plan.id in worth}
        spread = max(own.values()) - min(own.values()) if own else 0
        assert (tree.task in chosen) == (spread > 0.01)
        if tree.task in chosen:
            pair = chosen[tree.task]
            assert own[pair.leaf] == max(own.values())
            assert own[str(pair.rejected)] == min(own.values())
            assert pair.agent == PLANNER
    for pair in recipe.pairs(run, 1):
        sides = (chosen[pair.group].leaf, chosen[pair.group].rejected)
        assert [row.origin.split("/")[0] for row in (*pair.chosen, *pair.rejected)] == [*sides]


def test_success_is_a_mean_of_outcomes_and_plans_that_quote_actions_are_left_out(done):
    _, run = done
    task = run.store.task(trees(run)[0].task)
    quote = next(action for step in gold(task).steps for action in step.actions)
    tree = Tree(task.id, "rollout", 1)
    plans = [make_turn(tree.root, Speaker("agent", PLANNER), [Part(text)], draw=draw)
             for draw, text in enumerate(("Subgoal 1: think", f"Subgoal 1: {quote}"))]  # fmt: skip
    acts = [make_turn(plans[0].id, Speaker("agent", GROUNDER), [Part(text)]) for text in "ab"]
    for turn in (*plans, *acts):
        tree.add(turn)
    for sample, (turn, score) in enumerate(zip(acts, (1.0, 0.5), strict=True)):
        tree.end(Outcome(turn.id, sample, Ending("answered"), None, score))
    assert [moat_recipe._success(tree, plan) for plan in plans] == [0.75, 0.0]
    valid, left_out = moat_recipe.valid_plans(tree, task, leak_guard=True)
    assert valid == plans[:1] and [entry.reason for entry in left_out] == ["leaks"]
    assert moat_recipe.valid_plans(tree, task, leak_guard=False)[0] == plans


def test_the_grounder_learns_right_actions_under_the_plan_that_was_sampled_and_right_rows(done):
    recipe, run = done
    worth = rewards(recipe, run)
    sampled = {tree.task: tree for tree in trees(run)}
    with_plan = [one for one in trees(run, "correct") if len(one.leaves()) == 2]
    counts = run.metrics(StageKey(1, "correct"))
    assert counts["rejected"] == len(with_plan) > 1, "the script rejects actions and corrects none"
    for tree in with_plan:
        right = gold(run.store.task(tree.task))
        corrected, own = sorted(tree.leaves(), key=lambda turn: turn.draw)
        assert corrected.author == own.author == "data"
        assert corrected.text == own.text == right.actions
        plans = sampled[tree.task].children(sampled[tree.task].root)
        best = max((one for one in plans if one.id in worth), key=lambda one: worth[one.id])
        assert tree.turns[corrected.parent].text == best.text
        assert tree.turns[own.parent].text == right.plan
        renderer = recipe.renderers[GROUNDER]
        ((prompt, turn),) = prompts(tree, corrected.id, GROUNDER)
        assert best.text.strip() in renderer.decode(prompt)
        assert renderer.decode(turn.ids).startswith(right.actions)
    rows = recipe.rows(run, 1, GROUNDER)
    assert run.metrics(StageKey(1, "improve"))["rows"] == len(rows) == len(with_plan) + 4


def test_the_grounder_of_the_micro_world_learns_only_its_own_actions_with_right_answers(tmp_path):
    words = (
        "iterations=1", "engine.device=cpu", "parts=grounder", "rollout.tasks=8", "rollout.rollouts_per_task=3",
    )  # fmt: skip
    recipe = recipe_of(settings("moat/maths", words))
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_stages(
            recipe, run, Silent(), [StageKey(0, s) for s in ("rollout", "reward", "correct")]
        )
        counts, sampled = run.metrics(StageKey(0, "correct")), list(run.store.trees(0, "rollout"))
        learned = [turn for tree in run.store.trees(0, "correct") for turn in tree.leaves()]
    recipe.close()
    right = {
        tree.turns[leaf].text
        for tree in sampled
        for leaf, outcome in tree.outcomes.items()
        if outcome.score == 1
    }
    assert len(learned) == counts["accepted"] == counts["rows"] > 2 and counts["rejected"] > 2
    assert {turn.author for turn in learned} == {"grounder@0"}
    assert {turn.text for turn in learned} <= right


def test_j_is_measured_after_each_half_with_what_was_trained_by_then(done):
    recipe, run = done
    steps = (StageKey(1, WHOLE), StageKey(1, HALF), StageKey(2, WHOLE))
    measured = [run.metrics(step) for step in steps]
    assert [(one[PLANNER], one[GROUNDER]) for one in measured] == [(1, 1), (2, 1), (2, 2)]
    for step, one in zip(steps, measured, strict=True):
        tree = next(run.store.trees(step.iteration, step.stage))
        values = [
            likelihood(recipe, run, plan, tree, GROUNDER, int(one[GROUNDER]))
            for plan in tree.children(tree.root)
        ]
        key = next(k for k in run.store.metrics(step.iteration, step.stage) if k.task == tree.task)
        item = run.store.metrics(step.iteration, step.stage)[key]
        assert len(values) == 2
        assert {p.writer for p in tree.children(tree.root)} == {f"planner@{one[PLANNER]}"}
        assert item["loglikelihood"] == pytest.approx(sum(values) / 2, abs=1e-4)
        assert one["standard_error"] > 0 and one["n"] == 3


@pytest.mark.parametrize("parts", ["planner", "grounder"])
def test_a_fork_to_an_ablation_keeps_stages_but_no_figure_of_both_halves(done, tmp_path, parts):
    joint, run = done
    ablation = made(f"parts={parts}")
    kept = set(fork(ablation, run.folder, tmp_path / parts, ablation.settings))
    same = {
        StageKey(0, "align"),
        StageKey(0, "improve"),
        StageKey(1, "rollout"),
        StageKey(1, "reward"),
    }
    assert same | {StageKey(1, "evaluate")} <= kept
    assert not {StageKey(2, "evaluate"), StageKey(2, WHOLE)} & kept, "both halves were trained"
    assert ablation.fingerprint(StageKey(1, "rollout")) == joint.fingerprint(StageKey(1, "rollout"))


@pytest.mark.slow
def test_both_may_be_adapters_of_one_base(tmp_path):
    adapted = ("learning_rate=2e-2", "epochs=4")
    lora = [f"{stage}.train.{one}" for stage in ("start", "align", "improve") for one in adapted]
    with whole(tmp_path / "run", "share_base=true", "train.method=lora", *lora) as (_, run):
        finals = [run.training_folder(1, role) / "final" for role in (PLANNER, GROUNDER)]
        assert all((final / "adapter_config.json").is_file() for final in finals)
        weights = [run.metrics(StageKey(1, step))["weights"] for step in ("align", "improve")]
        assert weights[0] != weights[1]


@pytest.mark.parametrize(
    ("rejected", "authors"),
    [("drop", {"data"}), ("keep", {"data", "grounder@1"}), ("gold", {"data"})],
)
def test_rejections_are_counted(done, tmp_path, rejected, authors):
    overrides = (
        "correct.critic.model=tiny-exchange", "correct.critic.max_tokens=8",
        f"correct.rejected={rejected}", "parts=grounder",
    )  # fmt: skip
    folder, steps = tmp_path / "run", [StageKey(1, "correct")]
    with whole(folder, *overrides, source=done[1], steps=steps) as (_, run):
        counts = run.metrics(StageKey(1, "correct"))
        found = [turn.author for tree in trees(run, "correct") for turn in tree.leaves()]
        assert counts["rejected"] > 1 and counts["accepted"] == counts["corrected"] == 0
        assert set(found) == authors
        learned = 0 if rejected == "drop" else counts["rejected"]
        assert len(found) == counts["rows"] == 4 + learned


def test_the_report_has_j_and_the_spread_of_plans_and_can_be_written_at_any_time(done, tmp_path):
    recipe, run = done
    page = write_report(run.folder)
    answers, sections = read_page(page), sections_of(page)
    j = chart_of(sections["metrics"], "j")
    assert j["steps"] == [1, 2] and j["series"].keys() == {WHOLE, HALF}
    after, shown = run.metrics(StageKey(2, WHOLE)), j["series"][WHOLE]
    assert shown["values"][1] == after["j"]
    assert shown["high"][1] - after["j"] == pytest.approx(after["standard_error"])
    worth, spreads = rewards(recipe, run), []
    for tree in trees(run):
        own = [worth[one.id] for one in tree.children(tree.root) if one.id in worth]
        spreads += [max(own) - min(own)] if own else []
    measures = {row[0]: dict(zip(sections["measures"]["heads"], row, strict=True))
                for row in sections["measures"]["rows"]}  # fmt: skip
    assert measures["reward, iteration 1"]["spread"] == pytest.approx(statistics.fmean(spreads))
    pairs = dict(run.store.selections(1, "select"))
    planned = [task for task in answers["task"] if task["pairs"]]
    assert planned and {task["stage"] for task in planned} == {"rollout"}
    for task in planned:
        (pair,) = task["pairs"]
        assert (pair["node"], pair["against"]) == (
            pairs[task["task"]].leaf,
            pairs[task["task"]].rejected,
        )
        assert task["turns"][pair["node"]]["credit"]["reward"] == worth[pair["node"]]
    begun = made()
    with open_run(tmp_path / "begun", begun.name, begun.settings) as other:
        write_config(other)
        assert not read_page(write_report(other.folder))["overview"][0]["evaluations"]


def web(*overrides: str) -> Moat:
    sizes = [pair for pair in SMALL if not pair.startswith("dataset=")]
    recipe = recipe_of(settings("moat/web", [*sizes, *overrides]))
    assert isinstance(recipe, Moat)
    return recipe


def test_corrections_of_a_step_may_use_the_results_of_those_before(tmp_path):
    recipe = web("dataset=mind2web", f"dataset.source={write_tasks(tmp_path / 'tasks.jsonl')}")
    tasks = recipe.environment.tasks("heldout", 3, 0)
    assert [known_results(task) for task in tasks] == [(), ("R1",), ("R1", "R2")]
    for number, verdict in ((1, "rejected"), (2, "corrected"), (3, "corrected")):
        correction = Correction("corrected", "Subgoal 1: x", f"R{number} = CLICK(R1, QUERY: x)")
        assert recipe.validate(tasks[number - 1], correction, "").verdict == verdict


def test_rows_without_elements_are_trained_on_and_not_evaluated():
    recipe = web("dataset=lumos_web", "dataset.source=sample", "environment.turns=8")
    stages = {step.stage for step in recipe.stage_keys()}
    assert {"rollout", "reward", "align", "correct", "improve", "measure"} <= stages
    assert "evaluate" not in stages
    assert recipe.plan().evaluations == 0
