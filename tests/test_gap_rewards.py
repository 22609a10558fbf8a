"""What GAP's agents are rewarded with in reinforcement learning: each row of its table of rewards, as it is played.

A script says the messages; the recipe's own environment, tools and grader answer; the reward is that of the path in the
store, under the run's ``reward``. The numbers are those of GAP's and AFM's scripts and papers.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.chat_model import Answer
from coterie.environments.answers import gold_answer
from coterie.environments.workflow import AnswerJudge
from coterie.models.loading import load_renderer
from coterie.progress import Silent
from coterie.recipes.gap import Gap
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.rewards.dialogue_reward import PathReward
from coterie.rollout.episodes import Episode
from coterie.rollout.recorded_turns import ScriptedSampler
from coterie.runs.folder import open_run
from coterie.runs.items import open_actors, play
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_batch import AgentPath, paths_of
from tests.played import wiki_tools
from tests.row_files import jsonl
from tests.row_programs import EXAMS, LIVE

pytestmark = pytest.mark.usefixtures("own_home")
FENCE = "```"
SMALL = ["method=rl", "model=tiny-exchange", "environment.prompt=short"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wiki_tools(tmp_path_factory.mktemp("corpus"))


def paths(
    recipe: Gap, folder: Path, *scripts: Sequence[str], judge: AnswerJudge | None = None
) -> list[AgentPath]:
    """A path of the first held-out task for each script, with its reward."""
    renderer, _ = load_renderer("tiny-exchange")
    (task,) = recipe.environment.tasks("heldout", 1, 0)
    stage = f"{REINFORCE}/00000"

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield judge

    async def work(store: Any) -> None:
        own = {AnswerJudge: opened} if judge is not None else {}
        opens: Any = {**recipe.openers(), **own}
        async with open_actors(recipe.environment, folder, openers=opens) as cast:
            for sample, script in enumerate(scripts):
                sampler = ScriptedSampler(renderer, lambda _, said=script: said)  # type: ignore[misc]
                driver = cast.driver({recipe.agent: sampler}, 0)
                episodes = [Episode(task, sample, 0, stage)]
                await play(store, driver, episodes, Silent(), lambda: 0)

    with open_run(folder / "run", recipe.name, recipe.settings) as run:
        asyncio.run(work(run.store))
        reward = PathReward(recipe.settings.reward)
        found = paths_of(run.store, 0, stage, [task.id], [recipe.agent], reward)
    recipe.close()
    assert len(found) == len(scripts), "each script makes one path"
    return found


def questions(corpus: Path, *words: str) -> Gap:
    given = [*SMALL, "dataset=2wiki", "dataset.source=sample", f"tools.config={corpus}", *words]
    found = recipe_of(settings("gap/mhqa", given))
    assert isinstance(found, Gap)
    return found


def programs(dataset: str, row: dict[str, Any], folder: Path, *words: str) -> Gap:
    source = f"dataset.source={jsonl(folder / 'test.jsonl', row)}"
    found = recipe_of(settings("gap/code", [*SMALL, f"dataset={dataset}", source, *words]))
    assert isinstance(found, Gap)
    return found


def rewards(*given: Any, judge: AnswerJudge | None = None) -> list[float | None]:
    return [path.sampled.total for path in paths(*given, judge=judge)]


def gold_of(recipe: Gap) -> str:
    return gold_answer(recipe.environment.tasks("heldout", 1, 0)[0])


def says(answer: str) -> str:
    return f"<think>so</think><answer>{answer}</answer>"


SEARCH = "<think>first</think><wiki_search>Margaret of Holland</wiki_search>"


def test_exact_match_is_1_if_every_part_of_the_last_answer_is_right(
    corpus: Path, tmp_path: Path
) -> None:
    """Table: last <answer>, split on |, normalised; 1 iff every part is gold; no answer 0."""
    recipe = questions(corpus)
    gold = gold_of(recipe)
    found = rewards(
        recipe,
        tmp_path,
        [SEARCH, says(gold)],
        [SEARCH, says(f" The  {gold.upper()}. ")],
        [SEARCH, says(f"{gold}|{gold}|")],
        [SEARCH, says(f"{gold}|Ben")],
        [SEARCH, says("Ben")],
        [SEARCH, "<think>I do not know."],
    )
    assert found == [1, 1, 1, 0, 0, 0]


def test_with_the_first_answer_alone_the_others_do_not_count(corpus: Path, tmp_path: Path) -> None:
    """Table: GAP's evaluation looks at the first part only."""
    recipe = questions(corpus, "environment.several=first")
    gold = gold_of(recipe)
    found = rewards(recipe, tmp_path, [says(f"{gold}|Ben")], [says(f"Ben|{gold}")])
    assert found == [1, 0]


def test_f1_is_the_overlap_of_words(corpus: Path, tmp_path: Path) -> None:
    recipe = questions(corpus, "environment.score=f1")
    gold = gold_of(recipe)
    one, other = gold.split()
    found = rewards(
        recipe,
        tmp_path,
        [says(f"{other} {one}")],
        [says(f"{gold} of Sweden")],
        [says(one)],
        [says(f"{one} of many things")],
        [says("nobody")],
    )
    assert found == [1, *(pytest.approx(value) for value in (2 / 3, 2 / 3, 1 / 3)), 0]


@dataclass
class Judging:
    """A judge with these replies."""

    replies: list[str]
    name: str = "judge"

    async def ask(self, chat: Any, seed: int) -> Answer:
        assert "Right answers:" in chat[-1].text and "The student's answer: " in chat[-1].text
        return Answer(self.replies.pop(0), truncated=False)


def test_a_judge_gives_1_for_correct_and_0_else_and_no_reward_if_it_cannot_be_read(
    corpus: Path, tmp_path: Path
) -> None:
    """Table: JSON {rationale, judgement}; correct is 1, else 0. A judge that fails is no 0 here."""
    recipe = questions(corpus, "environment.score=judge", "environment.judge.model=tiny-exchange")
    replies = [
        '```json\n{"rationale": "same", "judgement": "correct"}\n```',
        '{"judgement": "incorrect"}',
        *["Hard to say."] * 2,
    ]
    judge = AnswerJudge(Judging(replies))  # type: ignore[arg-type]
    found = rewards(recipe, tmp_path, [says("x")], [says("y")], [says("z")], judge=judge)
    assert found == [1, 0, None]


def program(text: str) -> str:
    return says(f"\n{FENCE}py\n{text}\n{FENCE}\n")


ADD = "a, b = map(int, input().split())\nprint(a + b)"
PLAN = "<plan>\nT1: add\n- Dependencies: none\n</plan>"


def test_a_program_is_worth_1_if_all_its_tests_pass(tmp_path: Path) -> None:
    recipe = programs("livecodebench", LIVE, tmp_path)
    found = rewards(
        recipe,
        tmp_path,
        [PLAN + program(ADD)],
        [PLAN + program("input()\nprint(3)")],
        [PLAN + says(ADD)],
    )
    assert found == [1, 0, 0], "the second passes one of two tests, the third has no fences"


def test_mathematics_is_compared_as_mathematics(tmp_path: Path) -> None:
    """Table: the last <answer>, string match first, then Math-Verify."""
    recipe = programs("aime24", EXAMS["aime24"], tmp_path)
    answers = ("204", r"\boxed{\frac{408}{2}}", "205", "many")
    found = rewards(recipe, tmp_path, *([PLAN + says(answer)] for answer in answers))
    assert found == [1, 1, 0, 0]


@pytest.mark.parametrize("worth", [0.0, -1.0])
def test_a_path_out_of_form_is_worth_what_the_run_says(
    corpus: Path, tmp_path: Path, worth: float
) -> None:
    """Table: answer times form (codetag: 0); tags that are not paired (toolstar: -1)."""
    recipe = questions(corpus, f"reward.malformed={worth}")
    gold = gold_of(recipe)
    found = rewards(
        recipe,
        tmp_path,
        [SEARCH, says(gold)],
        [SEARCH, says("Ben")],
        [SEARCH, f"<think>so<answer>{gold}</answer>"],
        [SEARCH, f"<answer>{gold}</answer>"],
        [SEARCH, gold],
    )
    assert found == [1, 0, worth, worth, worth]


def test_length_costs_from_seven_eighths_of_the_limit_on(corpus: Path, tmp_path: Path) -> None:
    """Table: T = 7/8 L; p = min(0, -(length - T) / (L - T)), and what was cut off costs all of it."""
    script = [SEARCH, says(gold_of(questions(corpus)))]
    ((plain,), found) = (paths(questions(corpus), tmp_path / "plain", script), [])
    half = plain.tokens * 16 // 15 // 8 * 8
    for limit in (2 * plain.tokens // 8 * 8, half, plain.tokens // 2 // 8 * 8):
        least = limit * 7 // 8
        words = [f"reward.overlong_limit={limit}", f"reward.overlong_buffer={limit // 8}"]
        recipe = questions(corpus, "reward.overlong=1", *words)
        (reward,) = rewards(recipe, tmp_path / f"{limit}", script)
        told = max(-1.0, min(0.0, -(plain.tokens - least) / (limit - least)))
        assert reward == pytest.approx(1 + told)
        found.append(reward)
    assert found[0] == 1 and 0 < found[1] < 1 and found[2] == 0
