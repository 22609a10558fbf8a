"""PDDL games: a plan wins, what is possible and told, progress, splits, and files that can't be read."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.environments.acting import (
    ENVIRONMENT,
    NO_ANSWERS,
    SOLVED,
    write_action,
    write_answer,
)
from coterie.environments.games.pddl import (
    CHECK,
    IMPOSSIBLE,
    LOOK,
    MAX_TRIES,
    PDDL,
    TOO_MANY,
    PDDLSettings,
    Problem,
)
from coterie.environments.protocol import Shared, State
from coterie.errors import UserError
from coterie.record.tree import TURNS, Ending
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from tests.conftest import Cli, refused
from tests.helpers.script_games import Script

DOMAIN = """; a van brings parcels to places
(define (domain post)
  (:requirements :strips :typing :negative-preconditions :equality)
  (:types place thing - object  van parcel - thing)
  (:constants Van1 - van)
  (:predicates (at ?t - thing ?p - place) (inside ?x - parcel) (full))
  (:action drive :parameters (?from - place?to - place)
    :precondition (and (at van1 ?from) (not (= ?from ?to)))
    :effect (and (at van1 ?to) (not (at van1 ?from))))
  (:action load :parameters (?x - parcel ?p - place)
    :precondition (and (at ?x ?p) (at van1 ?p) (not (full)))
    :effect (and (inside ?x) (full) (not (at ?x ?p))))
  (:action unload :parameters (?x - parcel ?p - place)
    :precondition (and (inside ?x) (at van1 ?p))
    :effect (and (at ?x ?p) (not (inside ?x)) (not (full)))))
"""
PROBLEM = """(define (problem one) (:domain post)
  (:objects a b - place  letter box - parcel)
  (:init (at van1 a) (at letter a) (at box a) (not (full)))
  (:goal (and (at LETTER b) (at van1 a) (not (full)))))
"""
PLAN = ("load letter a", "drive a b", "unload letter b", "drive b a")


def write_game(
    folder: Path, problems: int = 1, domain: str = DOMAIN, problem: str = PROBLEM
) -> Path:
    """Write a domain and its problems; return the domain's file."""
    (folder / "post").mkdir()
    for number in range(1, problems + 1):
        (folder / "post" / f"p{number}.pddl").write_text(problem, "latin-1")
    (folder / "post.pddl").write_text(domain, "latin-1")
    return folder / "post.pddl"


def replies(file: Path, messages: Sequence[str]) -> tuple[list[str], EpisodeResult, Ending]:
    """Return what the environment says, at first and after each message, the result and its ending."""
    environment = PDDL(PDDLSettings(domain=str(file), steps=len(messages)))
    left = iter(messages)

    async def play() -> EpisodeResult:
        script = Script(lambda _: next(left))
        driver = Driver(environment, {"agent": script}, seed=0, shared=Shared())
        episodes = [Episode(one, 0, 0, "test") for one in environment.tasks("heldout", 1, 0)]
        async with driver.play_all(episodes) as playing:
            return await anext(playing)

    result = asyncio.run(play())
    assert result.tree is not None, result.failure
    (outcome,) = result.tree.outcomes.values()
    turns = result.tree.path(outcome.leaf)
    return [turn.text for turn in turns if turn.speaker == ENVIRONMENT], result, outcome.ending


def test_a_plan_wins_and_each_action_tells_what_changed(tmp_path: Path) -> None:
    texts, result, end = replies(write_game(tmp_path), [*map(write_action, PLAN)])
    assert texts == [
        "Goal: at letter b, at van1 a, not full.\nFacts: at box a; at letter a; at van1 a.",
        "Now: full; inside letter. No longer: at letter a.",
        "Now: at van1 b. No longer: at van1 a.",
        "Now: at letter b. No longer: full; inside letter.",
    ]
    assert end == SOLVED and result.tree is not None
    assert [one.score for one in result.tree.outcomes.values()] == [1.0]
    assert {name: result.metrics[name] for name in ("progress", "actions")} == {
        "progress": 1.0,
        "actions": 4,
    }


def test_what_is_not_possible_changes_nothing_and_progress_is_the_highest_share(
    tmp_path: Path,
) -> None:
    actions = [
        "Load the box at a.", "load letter a", "drive a a", "drive letter b", "unload letter a", "drive(a, b)", "fly a",
        "load box", CHECK, LOOK,
    ]  # fmt: skip
    messages = [*map(write_action, actions), write_answer("done")]
    texts, result, end = replies(write_game(tmp_path), messages)
    assert texts[2] == texts[3] == texts[4] == texts[5] == texts[8] == IMPOSSIBLE
    assert texts[6].startswith("Now: at van1 b.")
    assert texts[7] == "There is no action `fly a`. Actions: drive, load, unload."
    assert texts[9] == "Possible: drive b a; unload box b."
    assert texts[10] == "Facts: at letter a; at van1 b; full; inside box."
    assert texts[11] == NO_ANSWERS and end == TURNS
    assert result.tree is not None
    assert [one.score for one in result.tree.outcomes.values()] == [0.0]
    assert result.metrics["progress"] == 1 / 3, "the van is there after the first action"


@pytest.mark.parametrize(
    ("actions", "progress"),
    [(["look around"], 0), (["drive a a"], 0), (["drive a a", "load letter a"], 1 / 3)],
)
def test_goals_that_hold_at_first_count_after_the_first_change(
    tmp_path: Path, actions: list[str], progress: float
) -> None:
    """AgentBoard starts at 0 and ignores actions without an effect. Here the van may stay where it is."""
    file = write_game(tmp_path, domain=DOMAIN.replace("(not (= ?from ?to))", ""))
    texts, result, _ = replies(file, [*map(write_action, actions)])
    assert IMPOSSIBLE not in texts and result.metrics["progress"] == progress


def test_the_prompt_has_the_rules_and_types_are_subtypes(tmp_path: Path) -> None:
    environment = PDDL(PDDLSettings(domain=str(write_game(tmp_path))))
    task = environment.tasks("heldout", 1, 0)[0]
    prompt = environment.observe(State(task, 0), "agent")[0].parts[0].text
    assert (
        "load ?x ?p: needs at ?x ?p, at van1 ?p, not full; effect: inside ?x, full, not at ?x ?p\n"
    ) in prompt
    assert "drive ?from ?to: needs at van1 ?from, not = ?from ?to; effect" in prompt
    problem = Problem.read(DOMAIN, PROBLEM)
    assert problem.objects == {
        "van1": "van",
        "a": "place",
        "b": "place",
        "letter": "parcel",
        "box": "parcel",
    }
    assert (
        problem.fits("box", "thing")
        and problem.fits("box", "object")
        and not problem.fits("a", "thing")
    )
    assert environment.commands(task) == ("drive {} {}", "load {} {}", "unload {} {}", CHECK, LOOK)


def test_the_first_problems_train_and_the_others_are_held_out(tmp_path: Path) -> None:
    file = write_game(tmp_path, problems=12)
    environment = PDDL(PDDLSettings(domain=str(file), train=3))
    train = [one.id for one in environment.tasks("train", 3, 0)]
    assert sorted(train) == ["post-p1", "post-p2", "post-p3"]
    assert [one.id for one in environment.tasks("heldout", 99, 0)] == [
        f"post-p{n}" for n in range(4, 13)
    ]
    other = PDDL(PDDLSettings(domain=str(file), problems=str(tmp_path / "post")))
    assert other.version == environment.version and len(other.tasks("heldout", 99, 0)) == 12
    (tmp_path / "post" / "p1.pddl").write_text(PROBLEM.replace("letter b", "box b"))
    assert PDDL(PDDLSettings(domain=str(file))).version != other.version


def test_equal_problems_of_two_names_are_equal_tasks(tmp_path: Path) -> None:
    environment = PDDL(PDDLSettings(domain=str(write_game(tmp_path, 3)), train=1))
    (tmp_path / "post" / "p3.pddl").write_text(PROBLEM.replace("letter b", "box b"))
    other = PDDL(PDDLSettings(domain=str(tmp_path / "post.pddl"), train=1))
    (train,), (same, different) = other.tasks("train", 1, 0), other.tasks("heldout", 2, 0)
    assert train.public == same.public != different.public
    assert environment.tasks("heldout", 2, 0)[1].public == train.public


def test_files_that_nest_too_deep_are_named(tmp_path: Path) -> None:
    deep = PROBLEM.replace("(at LETTER b)", "(and " * 3000 + "(at LETTER b)" + ")" * 3000)
    with pytest.raises(UserError, match="nests formulas too deep"):
        PDDL(PDDLSettings(domain=str(write_game(tmp_path, problem=deep))))


@pytest.mark.parametrize(("parameters", "is_listed"), [(2, True), (16, False), (24, False)])
def test_a_list_of_too_many_actions_is_refused_early(
    parameters: int, is_listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[str]()
    fits = Problem.fits
    monkeypatch.setattr(Problem, "fits", lambda *args: tried.append(args[1]) or fits(*args))
    free = " ".join(f"?v{n} - place" for n in range(parameters))
    wide = f"(:action wide :parameters ({free}) :precondition (full) :effect (full))"
    domain = DOMAIN.replace("(:action drive", f"{wide}(:action drive")
    file = write_game(tmp_path, domain=domain)
    texts, _, _ = replies(file, [write_action("load letter a"), write_action(CHECK)])
    assert ("wide a b" in texts[2]) == is_listed and (texts[2] == TOO_MANY) == (not is_listed)
    assert len(tried) < 3 * MAX_TRIES


def test_the_command_needs_files_and_plays_them(cli: Cli, tmp_path: Path) -> None:
    words = ("evaluate", "pddl", "policy=tiny-acts", "max_tokens=8", "environment.steps=2")
    assert "there is no domain" in refused(cli, *words)
    assert "none has no .pddl file" in refused(
        cli, *words, f"environment.domain={write_game(tmp_path)}", "environment.problems=none"
    )
    result = cli(*words, f"environment.domain={tmp_path / 'post.pddl'}", "engine.device=cpu")
    assert not result.code and '"progress": 0.0' in result.out
