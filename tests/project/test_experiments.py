"""Experiments: tests of claims against values worked out by hand, result files, and one whole experiment."""

import gzip
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from coterie.environments import settings as environment_settings
from coterie.environments.plans.problems import Fact, Problem, as_task
from coterie.errors import UserError
from coterie.progress import Silent
from experiments import experiment, moat, multi_agent, rl
from experiments.claims import HeldOutResult, Hypothesis, Results, above, brief, token_ratio
from experiments.experiment import (
    DECODES,
    NAMES,
    SPARE_SEED,
    Decode,
    Experiment,
    load,
    make_recipe,
    portable,
)
from experiments.gap_sft import cut
from experiments.number_words import NAMES as NUMBER_NAMES
from experiments.number_words import THINGS, NumberWords
from experiments.results import BEST, Measurements, Training, read, show, tasks_file, write
from tests.conftest import SMALL, Cli, refused


def results(*of_seeds: list[tuple[float, int]]) -> Results:
    """Return (score, tokens) of each task, by seed."""
    return {
        seed: {str(task): HeldOutResult(*one) for task, one in enumerate(tasks)}
        for seed, tasks in enumerate(of_seeds)
    }


def alike(score: float, tokens: int) -> Results:
    """Return twenty equal tasks of two seeds."""
    return results(*[[(score, tokens)] * 20] * 2)


BASE = alike(0.5, 100)


def compared(
    ours: Results, theirs: Results, margin: float = 0.0, at_no_more_tokens: bool = False
) -> tuple[bool, float, str]:
    """Return if a claim holds, its effect, and what was tried."""
    words = {"margin": margin, "at_no_more_tokens": at_no_more_tokens}
    claim = above(Hypothesis("a", "a", "ours", "base", **words), ours, theirs)  # type: ignore[arg-type]
    return claim.holds, claim.effect, claim.tried


def test_above_has_its_margin_and_its_tokens() -> None:
    holds, effect, _ = compared(alike(0.7, 500), BASE, margin=0.1)
    assert holds and effect == pytest.approx(0.2)
    assert not compared(alike(0.6, 500), BASE, margin=0.1)[0], "exactly the margin"
    assert compared(BASE, alike(0.6, 1), margin=-0.2)[0]
    for ours, expected in (
        (alike(0.7, 100), True),
        (alike(0.7, 101), False),
        (alike(0.3, 10), False),
    ):
        holds, _, tried = compared(ours, BASE, margin=0.1, at_no_more_tokens=True)
        assert holds == expected and tried.endswith("of base's tokens")


@pytest.mark.parametrize(
    ("gains", "p_is_small", "p_seeds_is_small"),
    [
        ([0.2, 0.2, 0.2, 0.2, 0.2], True, True),
        # Every seed gains, so the bootstrap is sure; but one seed has nearly all of the gain.
        ([0.1, 0.1, 0.9], True, False),
        ([0.5, 0.0], False, False),
        # One seed has no variance of seeds.
        ([0.2], True, False),
    ],
)
def test_a_claim_holds_only_if_both_tests_agree_and_never_from_one_seed(
    gains: list[float], p_is_small: bool, p_seeds_is_small: bool
) -> None:
    ours = results(*([(gain, 10)] * 20 for gain in gains))
    theirs = results(*[[(0.0, 10)] * 20] * len(gains))
    claim = above(Hypothesis("a", "a", "ours", "base"), ours, theirs)
    assert (claim.p < 0.05, claim.p_seeds < 0.05) == (p_is_small, p_seeds_is_small)
    assert claim.holds == (p_is_small and p_seeds_is_small) and claim.seeds == len(gains)


def test_brief_needs_few_tokens_and_hardly_a_lower_score() -> None:
    claim = brief("b", "b", alike(0.48, 40), BASE, share=0.5, loss=0.05)
    assert claim.holds and claim.effect == pytest.approx(-0.6)
    for ours in (alike(0.40, 40), alike(0.48, 50), alike(0.45, 40)):
        claim = brief("b", "b", ours, BASE, share=0.5, loss=0.05)
        assert not claim.holds and claim.p == 1
    ours, theirs = results([(0, 30), (0, 10)], [(0, 20)]), results([(0, 40), (0, 40)], [(0, 40)])
    assert token_ratio(ours, theirs) == 0.5


def measured(value: float, count: int = 40) -> Results:
    """Return the values of the first questions of two seeds."""
    return results(*[[(value, 0)] * count] * 2)


def test_a_cut_is_a_share_of_the_sequential_values_without_failures() -> None:
    assert cut("rounds", "", measured(7.9), measured(10), 0.8).holds
    claim = cut("rounds", "", measured(8.1, count=10), measured(10), 0.8)
    assert not claim.holds and claim.effect == pytest.approx(-0.1)
    assert "8.10 against 10.00, on 20 questions" in claim.claim
    with pytest.raises(UserError, match="on every question one of the dialogues failed"):
        cut("rounds", "", measured(1, count=0), measured(10), 0.8)


@pytest.mark.parametrize(("fall", "holds"), [(0.03, True), (0.09, False)])
def test_j_may_fall_by_its_standard_error_and_tasks_without_it_are_left_out(
    fall: float, holds: bool
) -> None:
    values = [(-1.0, 0), (-0.5, 0)] * 10
    fallen = results(*[[(value - fall, 0) for value, _ in values]] * 2)
    del fallen[0]["0"]  # type: ignore[attr-defined]
    control = results(*[[(value - 0.3, 0) for value, _ in values]] * 2)
    start = results(*[values] * 2)
    j, never_falls = moat.likelihood_claims([start, start, fallen], control)
    assert j.holds and j.effect == pytest.approx(0.3 - fall, abs=1e-4) and "39 tasks" in j.tried
    assert never_falls.holds == holds, "the standard error is 0.04"


def test_halves_put_together_are_the_planner_of_one_run_and_the_grounder_of_the_other(
    tmp_path: Path,
) -> None:
    s = moat.put_together(Experiment(tmp_path, ["iterations=2"], [4], Silent()), 4).settings
    folders = ("planner_only/training/planner", "grounder_only/training/grounder")
    assert [s.model, s.grounder] == [
        f"{tmp_path}/seed-4/{folder}/iteration-01/final" for folder in folders
    ]


def test_the_gate_of_moat_plays_each_plan_with_clear_and_brief_parts() -> None:
    ann, bob = Fact("Ann", "pens", 12, "*", 12), Fact("Bob", "cups", 20, "-", 5)
    task = as_task(Problem("small", (ann, bob), (bob, ann)))
    assert moat.all_plans(task) == [
        f"Subgoal 1: find {first}; Subgoal 2: find {second}; Subgoal 3: add all"
        for first in ("Ann's pens", "Ann's")
        for second in ("Bob's cups", "Bob's")
    ]
    assert moat.has_words(task) and not moat.has_words(as_task(Problem("b", (bob,), (bob, ann))))


PROTOCOL = {
    **{"experiment": "multi_agent", "commit": "0123456789abcdef", "commit_date": "2026-11-29"},
    **{"changed": False, "decodes": {"Trap": {"temperature": 0.0, "scores": {"0": 0.9, "1": 0.5}}}},
    "gate": {"failed": {}},
}


def measurements_of(scores: dict[str, float], seeds: int = 2) -> Measurements:
    """Return ten equal tasks of each seed for methods with these scores."""
    measurements = Measurements()
    for method, score in scores.items():
        for seed in range(seeds):
            tasks = {f"{seed}-{n}": HeldOutResult(score, 10) for n in range(10)}
            training = Training(640, 20, 5_000, 9_000, 1.5)
            grades = {"steps": 2.998, "turns": 2.0}
            measurements.add(method, seed, 1, 1.0, tasks, grades, training)
    return measurements


def test_a_grade_does_not_overwrite_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    show(PROTOCOL, measurements_of({"dense": 0.5}), [])
    row = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][0]
    assert (row["steps"], row["trained_tokens"], row["sampled_tokens"]) == (20, 5_000, 9_000)
    assert row["grades"] == {"steps": 2.998, "turns": 2.0, "tokens_a_turn": 5.0}


def test_tables_have_means_of_the_newest_policies(capsys: pytest.CaptureFixture[str]) -> None:
    measurements = Measurements()
    for seed, iteration, share in ((0, 1, 0.9), (0, 2, 0.5), (1, 2, 0.6)):
        tasks = {"task": HeldOutResult(0.7, 40)}
        measurements.add("rejection", seed, iteration, 0.0, tasks, {"a_share": share})
    show(PROTOCOL, measurements, [])
    out = capsys.readouterr().out
    assert ["a", "share", "0.55"] in [line.split() for line in out.splitlines()]
    assert "fewer than 500 tasks" in out and "commit 0123456789ab" in out
    assert "Trap: best decode of the base at temperature 0 (0 0.900, 1 0.500)" in out


def test_claims_over_the_base_are_against_its_best_decode_at_both_decodes() -> None:
    scores = {"base": 0.3, f"base{BEST}": 0.8, "ours": 0.7, f"ours{BEST}": 0.9}
    control = {"control": 0.6, f"control{BEST}": 0.95}
    claims = measurements_of(scores | control).test(
        Hypothesis("over_base", "", "ours", "base" + BEST),
        Hypothesis("over_control", "", "ours", "control"),
    )
    assert [(c.id, c.effect, c.holds) for c in claims] == [
        ("over_base", -0.1, False),
        ("over_base_best_decode", 0.1, True),
        ("over_control", 0.1, True),
        ("over_control_best_decode", -0.05, False),
    ]
    # Where the decodes are the same there is one claim, and the base's row at its best decode equals the other one.
    (claim,) = measurements_of({"base": 0.3, "ours": 0.7}).test(
        Hypothesis("over_base", "", "ours", "base" + BEST)
    )
    assert claim.effect == pytest.approx(0.4)


def test_a_claim_whose_gate_failed_says_so_beside_its_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scores = {"ours": 0.7, f"ours{BEST}": 0.9, "control": 0.6, f"control{BEST}": 0.95}
    claims = measurements_of(scores).test(
        Hypothesis("gated", "gated", "ours", "control"),
        Hypothesis("free", "free", "ours", "control"),
    )
    show(PROTOCOL | {"gate": {"failed": {"gated": "a - b at least 0.1"}}}, Measurements(), claims)
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    holds = {cells[0]: cells[1] for cells in lines if len(cells) > 1}
    assert (holds["gated"], holds["free"]) == ("yes, gate failed", "yes")
    assert (holds[f"gated{BEST}"], holds[f"free{BEST}"]) == ("NO, gate failed", "NO")


def test_a_result_file_prints_the_same_tables_and_refuses_the_tasks_of_other_runs(
    cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ("own weights", "shared weights", "returns", "immediate rewards", "siblings", "paths")
    measurements = measurements_of({method: 0.9 - n / 7 for n, method in enumerate(methods)})
    claims = multi_agent.claims(measurements)
    file = tmp_path / "multi_agent-tiny.json"
    write(file, PROTOCOL, measurements, claims)
    show(PROTOCOL, measurements, claims)
    printed = capsys.readouterr().out
    again = cli("reproduce", "multi_agent", "--from", file)
    assert again.code == 0 and again.out == printed and '"id": "roles"' in printed
    assert "has results of multi_agent" in refused(cli, "reproduce", "moat", "--from", file)
    tasks = gzip.decompress(tasks_file(file).read_bytes()).decode().replace("0.9,", "0.8,", 1)
    tasks_file(file).write_bytes(gzip.compress(tasks.encode()))
    with pytest.raises(UserError, match="own weights, seed 0, are not those of its row"):
        read(file)
    tasks_file(file).unlink()
    assert "there is no file" in refused(cli, "reproduce", "multi_agent", "--from", file)


def test_a_gate_plays_no_seed_of_the_claims_and_a_claim_no_spare_seed(tmp_path: Path) -> None:
    x = Experiment(tmp_path, ["evaluate.tasks=2"], range(5), Silent())
    for of_experiment, seed in ((x.spare(), 0), (x, SPARE_SEED)):
        recipe = make_recipe("optima/isft", [*x.overrides, f"seed={seed}"])
        with (
            pytest.raises(ValueError, match="does not belong to this experiment"),
            of_experiment.base(recipe),
        ):
            pass
    assert not [*tmp_path.iterdir()]


def test_no_held_out_task_belongs_to_two_seeds(tmp_path: Path) -> None:
    """The encyclopedia has few questions, so that seeds draw some of them twice under other ids."""
    x = Experiment(tmp_path, [], range(3), Silent())
    recipes = [
        make_recipe("gap/tiny", ["evaluate.tasks=700", f"seed={seed}"])
        for seed in (2, 0, 1, SPARE_SEED)
    ]
    tasks = [x.held_out(recipe) for recipe in recipes]
    contents = [task.public["question"] for of_seed in tasks for task in of_seed]
    assert [len(of_seed) for of_seed in tasks] == [500] * 4 and len(contents) == len({*contents})
    drawn = recipes[0].environment.tasks("heldout", 700, 2)[:500]
    assert {task.public["question"] for task in drawn} & {*contents[500:]}, "none was left out"


def test_the_settings_of_a_result_file_name_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = Experiment(Path("runs"), [], [0], Silent())
    settings = multi_agent.make(x, "paths", 0).settings
    for folder in (Path("runs"), tmp_path / "runs"):
        moved = settings.model_copy(update={"model": f"{folder}/seed-0/sft/final"})
        values = portable(moved, x.folder)
        assert values["model"] == "seed-0/sft/final"
        assert values["environment.name"] == "experiments/multi_agent_worlds.py:FirstTurn"


def test_the_claims_of_a_folder_may_not_change_after_its_first_run(tmp_path: Path) -> None:
    x = Experiment(tmp_path / "runs", [], [0], Silent())
    protocol = experiment.begin(x, "multi_agent", multi_agent)
    assert experiment.begin(x, "multi_agent", multi_agent) == protocol
    assert len(protocol["commit"]) == 40 or protocol["changed"]
    experiment.save_protocol(x, protocol | {"source": "another"})
    with pytest.raises(UserError, match="the claims of multi_agent have changed since the runs"):
        experiment.begin(x, "multi_agent", multi_agent)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("moat", "gap-sft", "gap-rounds")]
)
def test_the_two_methods_of_quick_make_a_claim(name: str) -> None:
    module = load(name)
    measurements = measurements_of(dict.fromkeys(module.QUICK.methods, 0.9))
    measurements.partial = True
    bases = {"sweet_rl": "zero_shot", "sweet_rl-frontend": "zero_shot", "gap": "SFT"}
    base = measurements_of({bases.get(name, "base") + BEST: 0.5})
    measurements.tasks |= base.tasks
    assert len(module.QUICK.methods) == 2 and module.claims(measurements)


@pytest.mark.slow
def test_an_experiment_ends_with_claims_and_rows_and_is_not_done_twice(cli: Cli) -> None:
    first = cli("reproduce", "optima/isft", "--scale", "tiny", "--seed", 7, *SMALL)
    assert first.code == 0, first.err
    result = json.loads(first.out.splitlines()[-1])
    ids = ["isft_over_base", "isft_over_random", "isft_over_scripted"]
    claims = {claim["id"]: claim for claim in result["claims"]}
    assert [name for name in claims if not name.endswith("_best_decode")] == ids
    assert not any(claim["holds"] for claim in claims.values()), "one seed decides nothing"
    rows = {row["method"]: row for row in result["rows"]}
    assert [name for name in rows if BEST not in name] == ["base", "isft", "random", "scripted"]
    assert f"base{BEST}" in rows and {row["seed"] for row in rows.values()} == {7}
    for name in ("rows", "steps", "trained_tokens", "sampled_tokens", "seconds"):
        assert rows["isft"][name] > 0
    assert rows["isft"]["steps"] == rows["random"]["steps"]
    assert rows["scripted"]["sampled_tokens"] == 0
    folder = Path("runs/reproduce-optima-isft")
    values = json.loads((folder / "optima-isft-tiny.json").read_text())
    assert {*values["decodes"]["exchange"]["scores"]} == {f"{t:g}" for t in DECODES}
    assert {"torch", "transformers"} <= {*values["versions"]} and values["threads"] == 1
    assert values["seeds"] == [7] and values["settings"]["common"]["iterations"] == 1
    again = cli("reproduce", "optima/isft", "--seed", 7, *SMALL)
    assert json.loads(again.out.splitlines()[-1]) == result
    printed = cli("reproduce", "optima/isft", "--from", folder / "optima-isft-tiny.json")
    assert json.loads(printed.out.splitlines()[-1]) == result


def test_held_out_number_words_have_neither_numbers_nor_wordings_of_training() -> None:
    world, wordings, pairs = NumberWords(), dict[str, set[str]](), dict[str, set[frozenset[int]]]()
    for split in ("train", "heldout"):
        questions = [str(task.public["question"]) for task in world.tasks(split, 2_000, 0)]
        numbers = [frozenset(map(int, re.findall(r"\d", question))) for question in questions]
        pairs[split] = {*numbers}
        names = "|".join((*NUMBER_NAMES, *THINGS))
        wordings[split] = {re.sub(rf"\d|{names}", "_", question) for question in questions}
    assert not pairs["train"] & pairs["heldout"] and not wordings["train"] & wordings["heldout"]
    assert (len(wordings["train"]), len(wordings["heldout"])) == (8, 4)
    assert len(pairs["train"] | pairs["heldout"]) == 36


@pytest.mark.slow
def test_seeds_in_processes_beside_each_other_have_the_rows_of_one_process(tmp_path: Path) -> None:
    def rows(folder: str, *words: str) -> list[dict[str, object]]:
        command = [sys.executable, "-m", "coterie", "reproduce", "optima/isft", *SMALL, *words]
        command += ["--folder", str(tmp_path / folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        # Only the processes of the seeds print titles with a time.
        titles = re.findall(r"\d\d:\d\d:\d\d seed 1: isft", done.stderr)
        assert len(titles) == (folder == "both")
        return [
            {name: value for name, value in row.items() if name != "seconds"}
            for row in json.loads(done.stdout.splitlines()[-1])["rows"]
        ]

    both = rows("both", "--seeds", "2", "--processes", "2")
    assert {row["seed"] for row in both} == {0, 1}
    assert [row for row in both if row["seed"] == 1] == rows("one", "--seed", "1")


@pytest.mark.slow
def test_methods_of_reinforcement_learning_have_equal_steps_and_one_base_in_each_world(
    tmp_path: Path,
) -> None:
    overrides = ["steps.count=1", "rollout.tasks=2", "evaluate.tasks=3", "engine.device=cpu"]
    x = Experiment(tmp_path, overrides, [7], Silent())
    x.decodes = dict.fromkeys(rl.WORLDS, Decode(1.0, {}))
    rl.run(x)
    rows = {row.method: row for row in x.measurements.rows}
    bases = {f"{world}: base" for world in rl.WORLDS}
    assert {name.removesuffix(BEST) for name in rows} == {*rl.RUNS} | bases
    assert all(rows[name].sampled_tokens > 0 for name in rl.RUNS)
    # Two dialogues of persona can have equal rewards, which teach PPO nothing.
    assert {rows[name].steps for name in rl.RUNS if name.startswith("exchange")} == {1}
    claims = rl.claims(x.measurements)
    assert len({claim.id for claim in claims}) == len(claims) == 2 * (len(rl.RUNS) + 2)


def test_nothing_is_trained_if_the_gate_is_not_passed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moat, "NO_FAULT", 1.1)
    overrides = ("rollout.rollouts_per_task=2", "evaluate.tasks=2")
    gate = cli("reproduce", "moat", "--seeds", 1, "--folder", tmp_path / "all", *overrides)
    assert gate.code == 1 and json.loads(gate.out.splitlines()[-1])["passed"] is False
    assert "that is not enough to test the claims: best_plan and right_grounder at most" in gate.out
    assert [file.name for file in (tmp_path / "all").iterdir()] == ["gate"]
    on_data = refused(cli, "reproduce", "moat", "dataset=gsm8k_plans")
    assert "claims are tested on the micro-world problems" in on_data


def test_claims_on_games_whose_package_is_missing_are_refused_first(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment_settings, "version", missing)
    error = refused(cli, "reproduce", "dense_tree-textworld", "--folder", tmp_path / "all")
    assert "pip install -e '.[textworld]'" in error
    assert not (tmp_path / "all").exists()


def test_the_gate_of_web_pages_has_an_agent_that_tries_the_likely_values_first(cli: Cli) -> None:
    gate = cli("reproduce", "sweet_rl-frontend", "--gate", "evaluate.tasks=16")
    values = json.loads(gate.out.splitlines()[-1])
    assert values["base"] < 0.6 < 0.85 < values["asker"] < 1, values
