"""Rewards of GAP's agents in reinforcement learning: a test per row of its table of rewards.

A script writes the messages, and the recipe's environment, tools and grader answer. The numbers are those of the
scripts and papers of GAP and AFM.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.chat_model import Answer
from coterie.environments.qa_metrics import gold_answer
from coterie.environments.workflow.agent import AnswerJudge
from coterie.models.loading import load_renderer
from coterie.progress import Silent
from coterie.recipes.gap import Gap
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.rewards.dialogue_reward import PathReward
from coterie.rollout.episodes import Episode
from coterie.rollout.script_player import ScriptedSampler
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_batch import AgentPath, paths_of
from coterie.runs.run import open_run
from coterie.runs.work_items import open_actors, play
from tests.helpers.packaged_environments import wiki_tools
from tests.helpers.program_rows import EXAMS, LIVE
from tests.helpers.write_rows import write_jsonl

pytestmark = pytest.mark.usefixtures("own_home")
FENCE = "```"
SMALL = ["method=rl", "model=tiny-exchange", "environment.prompt=short"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wiki_tools(tmp_path_factory.mktemp("corpus"))


def paths(
    recipe: Gap, folder: Path, *scripts: Sequence[str], judge: AnswerJudge | None = None
) -> list[AgentPath]:
    """Play each script on the first held-out task, and return the paths with their rewards."""
    renderer, _ = load_renderer("tiny-exchange")
    (task,) = recipe.environment.tasks("heldout", 1, 0)
    stage = f"{REINFORCE}/00000"

    @asynccontextmanager
    async def open_judge() -> AsyncIterator[Any]:
        yield judge

    async def play_scripts(store: Any) -> None:
        openers: Any = {**recipe.openers(), **({AnswerJudge: open_judge} if judge else {})}
        async with open_actors(recipe.environment, folder, openers=openers) as actors:
            for sample, script in enumerate(scripts):
                sampler = ScriptedSampler(renderer, lambda _, lines=script: lines)  # type: ignore[misc]
                driver = actors.driver({recipe.agent: sampler}, 0)
                episodes = [Episode(task, sample, 0, stage)]
                await play(store, driver, episodes, Silent(), lambda: 0)

    with open_run(folder / "run", recipe.name, recipe.settings) as run:
        asyncio.run(play_scripts(run.store))
        reward = PathReward(recipe.settings.reward)
        agent_paths = paths_of(run.store, 0, stage, [task.id], [recipe.agent], reward)
    recipe.close()
    assert len(agent_paths) == len(scripts)
    return agent_paths


def rewards(*given: Any, judge: AnswerJudge | None = None) -> list[float | None]:
    return [path.sampled.total for path in paths(*given, judge=judge)]


def gap(method: str, overrides: Sequence[str]) -> Gap:
    recipe = recipe_of(settings(method, [*SMALL, *overrides]))
    assert isinstance(recipe, Gap)
    return recipe


def questions(corpus: Path, *overrides: str) -> tuple[Gap, str]:
    """Return a recipe, and the gold answer of its first held-out question."""
    data = ("dataset=2wiki", "dataset.source=sample", f"tools.config={corpus}")
    recipe = gap("gap/mhqa", [*data, *overrides])
    return recipe, gold_answer(recipe.environment.tasks("heldout", 1, 0)[0])


def programs(dataset: str, row: dict[str, Any], folder: Path) -> Gap:
    source = f"dataset.source={write_jsonl(folder / 'test.jsonl', row)}"
    return gap("gap/code", [f"dataset={dataset}", source])


def answered(text: str) -> str:
    return f"<think>so</think><answer>{text}</answer>"


SEARCH = "<think>first</think><wiki_search>Margaret of Holland</wiki_search>"


def test_exact_match_is_1_if_every_part_of_the_last_answer_is_right(
    corpus: Path, tmp_path: Path
) -> None:
    """Table: last <answer>, split on |, normalised; 1 iff every part is gold; no answer 0."""
    recipe, gold = questions(corpus)
    scripts = {
        answered(gold): 1,
        answered(f" The  {gold.upper()}. "): 1,
        answered(f"{gold}|{gold}|"): 1,
        answered(f"{gold}|Ben"): 0,
        answered("Ben"): 0,
        "<think>I do not know.": 0,
    }
    results = rewards(recipe, tmp_path, *([SEARCH, script] for script in scripts))
    assert results == list(scripts.values())


def test_with_the_first_answer_alone_the_others_do_not_count(corpus: Path, tmp_path: Path) -> None:
    """Table: GAP's evaluation looks at the first part only."""
    recipe, gold = questions(corpus, "environment.several=first")
    scripts = [answered(f"{gold}|Ben")], [answered(f"Ben|{gold}")]
    assert rewards(recipe, tmp_path, *scripts) == [1, 0]


def test_f1_is_the_overlap_of_words(corpus: Path, tmp_path: Path) -> None:
    recipe, gold = questions(corpus, "environment.score=f1")
    one, other = gold.split()
    answers = {
        f"{other} {one}": 1,
        f"{gold} of Sweden": 2 / 3,
        one: 2 / 3,
        f"{one} of many things": 1 / 3,
        "nobody": 0,
    }
    results = rewards(recipe, tmp_path, *([answered(answer)] for answer in answers))
    assert results == pytest.approx(list(answers.values()))


@dataclass
class Judging:
    """Judge with fixed replies."""

    replies: list[str]
    name: str = "judge"

    async def ask(self, chat: Any, seed: int) -> Answer:
        assert "Right answers:" in chat[-1].text and "The student's answer: " in chat[-1].text
        return Answer(self.replies.pop(0), truncated=False)


def test_a_judge_gives_1_for_correct_and_0_else_and_no_reward_if_it_cannot_be_read(
    corpus: Path, tmp_path: Path
) -> None:
    """Table: JSON {rationale, judgement}; correct is 1, else 0. A failure of the judge gives no reward."""
    overrides = ("environment.score=judge", "environment.judge.model=tiny-exchange")
    replies = [
        '```json\n{"rationale": "same", "judgement": "correct"}\n```',
        '{"judgement": "incorrect"}',
        *["Hard to say."] * 2,
    ]
    judge = AnswerJudge(Judging(replies))  # type: ignore[arg-type]
    scripts = ([answered(text)] for text in "xyz")
    assert rewards(questions(corpus, *overrides)[0], tmp_path, *scripts, judge=judge) == [
        1,
        0,
        None,
    ]


PLAN = "<plan>\nT1: add\n- Dependencies: none\n</plan>"


def test_a_program_is_worth_1_if_all_its_tests_pass(tmp_path: Path) -> None:
    add = "a, b = map(int, input().split())\nprint(a + b)"
    fenced = [f"\n{FENCE}py\n{text}\n{FENCE}\n" for text in (add, "input()\nprint(3)")]
    scripts = ([PLAN + answered(text)] for text in (*fenced, add))
    results = rewards(programs("livecodebench", LIVE, tmp_path), tmp_path, *scripts)
    assert results == [1, 0, 0], "the second passes one of two tests, the third has no fences"


def test_mathematics_is_compared_as_mathematics(tmp_path: Path) -> None:
    """Table: the last <answer>, string match first, then Math-Verify."""
    recipe = programs("aime24", EXAMS["aime24"], tmp_path)
    answers = ("204", r"\boxed{\frac{408}{2}}", "205", "many")
    assert rewards(recipe, tmp_path, *([PLAN + answered(one)] for one in answers)) == [1, 1, 0, 0]


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_path_out_of_form_has_the_reward_of_the_settings(
    corpus: Path, tmp_path: Path, value: float
) -> None:
    """Table: answer times form (codetag: 0); tags that are not paired (toolstar: -1)."""
    recipe, gold = questions(corpus, f"reward.malformed_reward={value}")
    scripts = {
        answered(gold): 1,
        answered("Ben"): 0,
        f"<think>so<answer>{gold}</answer>": value,
        f"<answer>{gold}</answer>": value,
        gold: value,
    }
    results = rewards(recipe, tmp_path, *([SEARCH, script] for script in scripts))
    assert results == list(scripts.values())


def test_length_costs_from_seven_eighths_of_the_limit_on(corpus: Path, tmp_path: Path) -> None:
    """Table: T = 7/8 L; p = min(0, -(length - T) / (L - T)); a truncated path costs all of it."""
    recipe, gold = questions(corpus)
    script = [SEARCH, answered(gold)]
    (plain,) = paths(recipe, tmp_path / "plain", script)
    results = []
    for length in (2 * plain.tokens, plain.tokens * 16 // 15, plain.tokens // 2):
        limit = length // 8 * 8
        least = limit * 7 // 8
        overrides = [f"reward.overlong_limit={limit}", f"reward.overlong_buffer={limit // 8}"]
        recipe, _ = questions(corpus, "reward.overlong_penalty=1", *overrides)
        (reward,) = rewards(recipe, tmp_path / f"{limit}", script)
        penalty = max(-1.0, min(0.0, -(plain.tokens - least) / (limit - least)))
        assert reward == pytest.approx(1 + penalty)
        results.append(reward)
    assert results[0] == 1 and 0 < results[1] < 1 and results[2] == 0
