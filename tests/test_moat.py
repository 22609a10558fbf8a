"""``moat`` through its recipe, on a few word problems and a tiny model: rewards, pairs, corrections, J, roles."""

import json
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from coterie.environments.plan_ground import GROUNDER, PLANNER, gold, known_results
from coterie.environments.protocol import State
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Silent
from coterie.recipes import moat as moat_recipe
from coterie.recipes.moat import HALF, WHOLE, Moat
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.recipes.report import run_report
from coterie.record.rows import prompts
from coterie.record.tree import Ending, Metrics, Outcome, Tree
from coterie.record.turn import Part, Speaker, Turn, make_turn
from coterie.reports.page import Section, write_page
from coterie.rewards.critics import Correction
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.loop import fork, run_steps
from coterie.runs.roles import Roles
from coterie.tools.retrieval import build_index
from tests.test_report_page import Page
from tests.web_tasks import write

TRAIN = ("batch_rows=4", "max_length=1024", "learning_rate=2e-3")
SMALL = (
    "dataset=tests/plans.py:Plans", "model=tiny-exchange", "iterations=1", "engine.device=cpu",
    "rollout.tasks=4", "rollout.samples=4", "rollout.max_tokens=40", "start.tasks=6",
    "measure.tasks=3", "measure.samples=2", "evaluate.tasks=2", "pairs.margin=0.01",
    *(f"{stage}.train.{word}" for stage in ("start", "align", "improve") for word in TRAIN),
)  # fmt: skip


def made(*words: str) -> Moat:
    recipe = recipe_of(settings("moat/maths", [*SMALL, *words]))
    assert isinstance(recipe, Moat)
    return recipe


def whole(folder: Path, *words: str, steps: list[Step] | None = None) -> Moat:
    recipe = made(*words)
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), steps)
    return recipe


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Moat, Run]]:
    folder = tmp_path_factory.mktemp("moat") / "run"
    recipe = whole(folder)
    with open_run(folder, recipe.name, recipe.settings, write=False) as run:
        yield recipe, run
        recipe.close()


@cache
def model(folder: Path, role: str, version: int) -> LoadedModel:
    recipe = made()
    with open_run(folder, recipe.name, recipe.settings, write=False) as run:
        return Roles(recipe.roles(), recipe.settings.engine, run).load(role, version)


def likelihood(recipe: Moat, run: Run, plan: Turn, tree: Tree, role: str, version: int) -> float:
    """Mean log-prob of the right actions after a plan, by a plain forward pass."""
    loaded, task = model(run.folder, role, version), run.store.task(tree.task)
    shown = recipe.environment.see(State(task, 0, turns=(plan,)), GROUNDER)
    prompt = loaded.renderer.render(shown, tree, GROUNDER)
    target = loaded.renderer.encode_turn(gold(task).actions)
    with torch.no_grad():
        logprobs = loaded.model(torch.tensor([[*prompt, *target]])).logits[0].log_softmax(-1)
    found = [logprobs[len(prompt) - 1 + n, token] for n, token in enumerate(target)]
    return float(torch.stack(found).double().mean())


def rewards(recipe: Moat, run: Run, name: str = "reward") -> dict[str, float]:
    key = recipe.fingerprint(Step(1, "reward"))
    return run.store.credit(key, name, iteration=1, stage="rollout")


def trees(run: Run, stage: str = "rollout") -> list[Tree]:
    return list(run.store.trees(1, stage))


def test_a_plan_is_worth_what_the_grounder_makes_of_the_right_actions(done):
    recipe, run = done
    found = rewards(recipe, run)
    assert found
    for tree in trees(run)[:2]:
        for plan in tree.children(tree.root):
            if plan.id in found:
                right = likelihood(recipe, run, plan, tree, GROUNDER, 1)
                assert found[plan.id] == pytest.approx(right, abs=1e-4)
                other = likelihood(recipe, run, plan, tree, PLANNER, 1)
                assert abs(found[plan.id] - other) > 1e-3, "by the grounder, not by the planner"


def test_a_pair_is_the_best_and_the_worst_plan_of_a_task(done):
    recipe, run = done
    found = rewards(recipe, run)
    chosen = dict(run.store.selections(1, "select"))
    assert chosen
    for tree in trees(run):
        own = {plan.id: found[plan.id] for plan in tree.children(tree.root) if plan.id in found}
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
    found, counts = moat_recipe.valid_plans(tree, task, leak_guard=True)
    assert found == plans[:1] and counts["leaks"] == 1
    assert moat_recipe.valid_plans(tree, task, leak_guard=False)[0] == plans


def test_the_grounder_learns_right_actions_under_the_plan_that_was_sampled_and_right_rows(done):
    recipe, run = done
    found = rewards(recipe, run)
    sampled = {tree.task: tree for tree in trees(run)}
    with_plan = [one for one in trees(run, "correct") if len(one.leaves()) == 2]
    assert run.metrics(Step(1, "correct"))["corrected"] == len(with_plan) > 1
    for tree in with_plan:
        right = gold(run.store.task(tree.task))
        corrected, own = sorted(tree.leaves(), key=lambda turn: turn.author)
        assert (corrected.author, own.author) == ("critic:script", "data")
        assert corrected.text == own.text == right.actions
        plans = sampled[tree.task].children(sampled[tree.task].root)
        best = max((one for one in plans if one.id in found), key=lambda one: found[one.id])
        assert tree.turns[corrected.parent].text == best.text
        assert tree.turns[own.parent].text == right.plan
        renderer = recipe.renderers[GROUNDER]
        ((prompt, turn),) = prompts(tree, corrected.id, GROUNDER)
        assert best.text.strip() in renderer.decode(prompt)
        assert renderer.decode(turn.ids).startswith(right.actions)
    rows = recipe.rows(run, 1, GROUNDER)
    assert run.metrics(Step(1, "improve"))["rows"] == len(rows) == len(with_plan) + 4


def test_j_is_measured_after_each_half_with_what_was_trained_by_then(done):
    recipe, run = done
    steps = (Step(1, WHOLE), Step(1, HALF), Step(2, WHOLE))
    found = [run.metrics(step) for step in steps]
    assert [(one[PLANNER], one[GROUNDER]) for one in found] == [(1, 1), (2, 1), (2, 2)]
    for step, one in zip(steps, found, strict=True):
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
def test_an_ablation_takes_over_what_is_the_same_and_no_figure_of_both_halves(
    done, tmp_path, parts
):
    joint, run = done
    ablation = made(f"parts={parts}")
    kept = fork(ablation, run.folder, tmp_path / parts, ablation.settings)
    assert {Step(0, "align"), Step(0, "improve"), Step(1, "rollout"), Step(1, "reward")} <= set(
        kept
    )
    assert not {Step(2, "evaluate"), Step(2, WHOLE)} & set(kept), "they are of two trained halves"
    assert Step(1, "evaluate") in kept
    assert ablation.fingerprint(Step(1, "rollout")) == joint.fingerprint(Step(1, "rollout"))


@pytest.mark.slow
def test_both_may_be_adapters_of_one_base(tmp_path):
    adapted = ("learning_rate=2e-2", "epochs=4")
    lora = [f"{stage}.train.{one}" for stage in ("start", "align", "improve") for one in adapted]
    recipe = whole(tmp_path / "run", "share=true", "train.method=lora", *lora)
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        finals = [run.training_folder(1, role) / "final" for role in (PLANNER, GROUNDER)]
        assert all((final / "adapter_config.json").is_file() for final in finals)
        weights = [run.metrics(Step(1, step))["weights"] for step in ("align", "improve")]
        assert weights[0] != weights[1]


@pytest.mark.parametrize(
    ("unreadable", "authors"),
    [("drop", {"data"}), ("keep", {"data", "grounder@1"}), ("gold", {"data"})],
)
def test_what_a_critic_says_that_cannot_be_read_is_counted(tmp_path, unreadable, authors):
    """The packaged model as a critic says nothing that can be read."""
    words = (
        "correct.critic.model=tiny-exchange", "correct.critic.max_tokens=8",
        f"correct.unreadable={unreadable}", "parts=grounder",
    )  # fmt: skip
    steps = [one for one in made(*words).steps() if one.iteration == 0 or one.stage != "evaluate"]
    recipe = whole(tmp_path / "run", *words, steps=steps[: steps.index(Step(1, "correct")) + 1])
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        counts = run.metrics(Step(1, "correct"))
        found = [turn.author for tree in trees(run, "correct") for turn in tree.leaves()]
        assert counts["unreadable"] > 1 and counts["accepted"] == counts["corrected"] == 0
        assert set(found) == authors
        learnt = 0 if unreadable == "drop" else counts["unreadable"]
        assert len(found) == counts["rows"] == 4 + learnt


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rollout.samples=1"], "gives no pair of plans"),
        (["share=true"], "share=true trains adapters"),
        (["dataset=gsm8k", "dataset.source=sample"], "no preset for gsm8k"),
        (["dataset=none", "environment=examples/environment.py:Guess"], "planner and a grounder"),
        (["correct.critic.model=nobody/nothing"], "nobody/nothing"),
        (["grounder=nobody/nothing"], "nobody/nothing"),
        (["start.train.max_length=64"], "leaves nothing to train on"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(words, says):
    with pytest.raises(UserError, match=says):
        made(*words).check()


def test_plans_that_are_all_alike_are_said(tmp_path):
    with pytest.raises(
        UserError, match=r"no pair of plans that differ by more than pairs\.margin=50"
    ):
        whole(tmp_path / "run", "pairs.margin=50", "parts=planner")


# -- report -----------------------------------------------------------------------------------


def section(recipe: Moat, run: Run, id_: str) -> Section:
    return next(one for one in recipe.sections(run) if one.id == id_)


def table(recipe: Moat, run: Run, id_: str) -> list[dict[str, str]]:
    found = section(recipe, run, id_)
    return [dict(zip(found.heads, row, strict=True)) for row in found.rows]


def test_j_stands_there_before_and_after_each_half_with_what_it_changed_by(done):
    recipe, run = done
    steps = (Step(1, WHOLE), Step(1, HALF), Step(2, WHOLE))
    rows, metrics = table(recipe, run, "joint"), [run.metrics(step) for step in steps]
    assert [row["measurement"] for row in rows] == [
        "0: before iteration 1", "1: iteration 1, planner aligned", "2: after iteration 1"
    ]  # fmt: skip
    for row, one in zip(rows, metrics, strict=True):
        assert (row["J"], row["tasks"]) == (f"{one['j']:.4f}", "3")
        assert row["standard error"] == f"{one['standard_error']:.4f}"
        assert [row[PLANNER], row[GROUNDER]] == [f"{one[PLANNER]}", f"{one[GROUNDER]}"]
    values = [
        {key.task: one["loglikelihood"] for key, one in run.store.metrics(*at).items() if key.task}
        for at in ((1, HALF), (2, WHOLE))
    ]
    gaps = [values[1][task] - values[0][task] for task in sorted(values[0])]
    error = statistics.stdev(gaps) / len(gaps) ** 0.5
    assert rows[2]["change"] == f"{statistics.fmean(gaps):+.4f} ± {error:.4f}"
    assert rows[0]["change"] == ""
    joint = section(recipe, run, "joint")
    (series,) = joint.charts[0].series
    assert [point.y for point in series.points] == [one["j"] for one in metrics]


def test_the_spread_of_a_task_is_the_difference_of_its_best_and_worst_plan(done):
    recipe, run = done
    (row,) = table(recipe, run, "spread")
    found = rewards(recipe, run)
    spreads = []
    for tree in trees(run):
        own = [found[one.id] for one in tree.children(tree.root) if one.id in found]
        spreads += [max(own) - min(own)] if own else []
    assert row["median"] == f"{statistics.median(spreads):.3f}"
    assert row["pairs"] == f"{run.metrics(Step(1, 'select'))['selected']}"


def test_plans_stand_side_by_side_with_rewards_and_the_pair_is_marked(done):
    recipe, run = done
    shown = section(recipe, run, "planner")
    found = rewards(recipe, run)
    pairs = dict(run.store.selections(1, "select"))
    assert shown.examples and {one.task for one in shown.examples} <= {*pairs}
    for one in shown.examples:
        by_side = {sample.side: dict(sample.facts) for sample in one.samples}
        pair = pairs[one.task]
        assert by_side["chosen"]["reward"] == f"{found[pair.leaf]:.3f}"
        assert by_side["rejected"]["reward"] == f"{found[pair.rejected]:.3f}"
        assert [sample.side for sample in one.samples if sample.trained] == ["chosen", "rejected"]
        assert one.prompts[0].agent == PLANNER and ("answer" in dict(one.answers))


def test_the_page_is_whole_at_any_time_and_has_a_chart_of_j(done, tmp_path: Path):
    recipe, run = done
    write_page(run_report(recipe, run), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert not Page(page).open
    for id_ in ("joint", "stages", "spread", "joint-chart", "planner", "grounder"):
        assert f'id="{id_}"' in page
    begun = made()
    with open_run(tmp_path / "begun", begun.name, begun.settings) as other:
        write_page(run_report(begun, other), tmp_path / "report.html")


# -- moat/complex_qa and moat/web --------------------------------------------------------------

SIZES = tuple(word for word in SMALL if not word.startswith("dataset="))


def method(name: str, *words: str) -> Moat:
    recipe = recipe_of(settings(name, [*SIZES, *words]))
    assert isinstance(recipe, Moat)
    return recipe


def last_metrics(recipe: Moat, folder: Path) -> tuple[Metrics, Metrics]:
    """Run a recipe whole and return the metrics of its corrections and of its last evaluation."""
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent())
        return run.metrics(Step(1, "correct")), run.metrics(Step(2, "evaluate"))


def test_a_run_on_web_pages_by_steps(tmp_path):
    file = write(tmp_path / "tasks.jsonl")
    words = ("dataset=mind2web", f"dataset.source={file}", "rollout.tasks=8")
    _, last = last_metrics(method("moat/web", *words), tmp_path / "run")
    assert (last["n"], last["failed"], last["on_page"]) == (2, 0, 1.0)


def test_a_run_on_questions_over_pages(tmp_path):
    pages = tmp_path / "pages.jsonl"
    towns = {"Peru": "Lima", "Norway": "Oslo"}.items()
    rows = [{"title": land, "text": f"{town} is the capital of {land}."} for land, town in towns]
    pages.write_text("\n".join(map(json.dumps, rows)))
    build_index(pages, tmp_path / "index")
    words = ("dataset=tests/plans.py:Questions", f"environment.corpus={tmp_path / 'index'}")
    recipe = method("moat/complex_qa", *words, "parts=grounder")
    correct, last = last_metrics(recipe, tmp_path / "run")
    assert (correct["corrected"], last["n"]) == (1, 1)


def test_corrections_of_a_step_may_use_the_results_of_those_before(tmp_path):
    file = write(tmp_path / "tasks.jsonl")
    recipe = method("moat/web", "dataset=mind2web", f"dataset.source={file}")
    tasks = recipe.environment.tasks("heldout", 3, 0)
    assert [known_results(task) for task in tasks] == [(), ("R1",), ("R1", "R2")]
    for number, verdict in ((1, "unreadable"), (2, "corrected"), (3, "corrected")):
        said = Correction("corrected", "Subgoal 1: x", f"R{number} = CLICK(R1, QUERY: x)")
        found = recipe.validate(tasks[number - 1], said, "")
        assert found.verdict == verdict


def test_rows_without_elements_are_trained_on_and_not_evaluated():
    words = ("dataset=lumos_web", "dataset.source=sample", "environment.turns=8")
    recipe = method("moat/web", *words)
    stages = {step.stage for step in recipe.steps()}
    assert {"rollout", "reward", "align", "correct", "improve", "measure"} <= stages
    assert "evaluate" not in stages
    assert recipe.plan().evaluations == 0
