"""What each step of ``sweet_rl`` does with dialogues that are known: pairs, candidates, scores, and what is trained.

No weights are trained here. Six dialogues are read from a file, and a model with some noise stands in for the
trained critic; what the recipe hands to ``train`` is looked at instead of what comes out of it.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import EngineError, EngineGone, Sampling
from coterie.environments.coding import AGENT, CRITIC, with_reference
from coterie.models.heads import HEAD_FILE, find_head
from coterie.models.loading import LoadedModel, load
from coterie.progress import Silent
from coterie.recipes import sweet_training
from coterie.recipes.base import PolicyRecipe
from coterie.recipes.sweet_critic import JudgeOfTurns, open_critic, scored
from coterie.recipes.sweet_data import played
from coterie.recipes.sweet_files.importing import import_trajectories, survey
from coterie.recipes.sweet_rl import SweetRL
from coterie.recipes.sweet_settings import SweetSettings
from coterie.rewards.judge import Judge
from coterie.rollout.best_of import BestOfVoice
from coterie.rollout.candidates import candidates
from coterie.rollout.episodes import Episode
from coterie.rollout.voices import Ask, Memory, TokenVoice
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.loop import run_steps
from coterie.training.checkpoint import weight_hash
from coterie.training.classifier import Classifier
from coterie.training.dpo import DPO
from coterie.training.forward import row_logprobs
from coterie.training.regression import Regression
from coterie.training.sft import SFT
from coterie.training.sides import side_statistic
from coterie.trajectories.row import Row
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part, PrivilegeError, Speaker, Turn, make_turn
from coterie.trajectories.view import prompts
from tests.test_step_critic import moved, naive
from tests.test_sweet_import import REFERENCE_CODE, RIGHT, WRONG, made, row, wrote

BASE = "tiny-exchange"
WORDS = ("rollout.tasks=3", "rollout.repeats=2", "candidates.share=1", "candidates.temperature=0.9")
SECRET = "boxes * 12"
"""In the reference alone."""
ROWS = [
    row(0, "Hm. OUTPUT: How many in a box?", RIGHT, reward=1.0),
    row(1, "How many?", WRONG, reward=0.1),
    row(2, "Why?", WRONG, reward=0.5),
    row(0, WRONG, reward=0.1),
    row(1, "Big ones?", "Red?", RIGHT, reward=1),
    row(2, WRONG, reward=0.1),
]
"""Two dialogues of each of three tasks, two of which were solved once."""
SELECT, TRAIN = Step(0, "select"), Step(0, "train")
BRANCH, REWARD, SELECT_TURNS = Step(1, "rollout"), Step(1, "reward"), Step(1, "select")


@cache
def base() -> LoadedModel:
    """The base, to compare with; nothing takes it over."""
    return load(BASE)


@pytest.fixture
def own() -> Iterator[SweetRL]:
    recipe = made(*WORDS)
    yield recipe
    recipe.close()


def imported(folder: Path) -> SweetRL:
    """A run whose dialogues are played; its recipe."""
    rows, recipe = wrote(folder / "theirs.jsonl", ROWS), made(*WORDS)
    import_trajectories(rows, recipe, folder / "run", Silent(), found=survey(rows))
    return recipe


@pytest.fixture
def played_only(tmp_path: Path) -> Iterator[Run]:
    recipe = imported(tmp_path)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        yield run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Played and selected, with a critic that has a value head, and every turn's candidates ranked by it."""
    folder = tmp_path_factory.mktemp("steps")
    recipe = imported(folder)
    with open_run(folder / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), [SELECT])
        critic, final = moved(0), run.training_folder(0) / "final"
        critic.model.save_pretrained(final)
        critic.tokenizer.save_pretrained(final)
        width = torch.randn(
            1, critic.model.config.hidden_size, generator=torch.Generator().manual_seed(0)
        )
        save_file(
            {"value_head.weight": width, "value_head.bias": torch.zeros(1)}, final / HEAD_FILE
        )
        for step in (BRANCH, REWARD, SELECT_TURNS):
            recipe.do(run, step, Silent())
        yield run
    recipe.close()


def groups(run: Run) -> Iterator[tuple[Task, Tree, list[Turn]]]:
    """Each turn's candidates."""
    for tree in run.store.trees(1, "rollout"):
        for group in candidates(tree):
            yield run.store.task(tree.task), tree, group


# -- which episodes, in which order, under which settings ---------------------------------------


@dataclass
class Plays:
    episodes: Sequence[Episode]
    temperature: float
    top_p: float


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> list[Plays]:
    """What is asked to be played, instead of playing it."""
    seen: list[Plays] = []

    async def play(
        self: PolicyRecipe, run: Any, episodes: Any, t: float, p: float, progress: Any
    ) -> dict[str, int]:
        seen.append(Plays(episodes, t, p))
        return {}

    monkeypatch.setattr(PolicyRecipe, "play", play)
    return seen


def test_each_task_is_played_k_times_and_each_held_out_one_once(plays: list[Plays]) -> None:
    words = (
        "rollout.tasks=4",
        "rollout.repeats=3",
        "rollout.temperature=0.8",
        "rollout.top_p=0.95",
    )
    recipe = made(*words, "evaluate.tasks=5", "evaluate.temperature=0.6")
    asyncio.run(recipe.rollout(None, Silent()))  # type: ignore[arg-type]
    asyncio.run(recipe.evaluate(None, 2, Silent()))  # type: ignore[arg-type]
    rollout, heldout = plays
    world = recipe.environment
    ids = [task.id for task in world.tasks("train", 4, recipe.settings.seed)]
    assert [(e.task.id, e.sample) for e in rollout.episodes] == [
        (id_, n) for id_ in ids for n in range(3)
    ]
    assert {(e.iteration, e.stage) for e in rollout.episodes} == {(0, "rollout")}
    assert (rollout.temperature, rollout.top_p) == (0.8, 0.95)
    of_test = [task.id for task in world.tasks("heldout", 5, recipe.settings.seed)]
    assert [(e.task.id, e.sample) for e in heldout.episodes] == [(id_, 0) for id_ in of_test]
    assert {(e.iteration, e.stage) for e in heldout.episodes} == {(2, "evaluate")}
    assert heldout.temperature == 0.6 and not set(ids) & set(of_test)


STEPS = {
    "method=sweet": [
        (0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "rollout"), (1, "reward"), (1, "select"),
        (1, "train"), (2, "evaluate"),
    ],
    "critic.kind=judge": [
        (0, "evaluate"), (0, "rollout"), (1, "rollout"), (1, "reward"), (1, "select"), (1, "train"), (2, "evaluate"),
    ],
    "method=rejection_ft": [(0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "evaluate")],
    "method=multi_turn_dpo": [(0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "evaluate")],
}  # fmt: skip


@pytest.mark.parametrize("word", STEPS)
def test_the_steps_of_a_method(word: str) -> None:
    recipe = made(word)
    assert recipe.steps() == [Step(*one) for one in STEPS[word]]
    judged = word == "critic.kind=judge"
    if recipe.settings.method == "sweet":
        assert recipe.needs(REWARD) == ([BRANCH] if judged else [BRANCH, TRAIN])
        assert recipe.needs(BRANCH) == [Step(0, "rollout")]
        assert recipe.needs(Step(1, "train")) == [SELECT_TURNS]
    assert recipe.needs(recipe.steps()[-1]) == [recipe.steps()[-2]]


CHANGES: dict[str, set[tuple[int, str]]] = {
    "critic.privileged=false": {(0, "train"), (1, "reward")},
    "critic.objective.beta=0.2": {(0, "train"), (1, "reward")},
    "critic.train.epochs=3": {(0, "train"), (1, "reward")},
    "least_reward=0.5": {(0, "select")},
    "rollout.temperature=0.5": {(0, "rollout")},
    "candidates.count=8": {(1, "rollout"), (1, "reward")},
    "candidates.temperature=0.5": {(1, "rollout"), (1, "reward")},
    "candidates.in_flight=3": set(),
    "pairs.count=2": {(1, "select")},
    "policy.objective.nll=0.5": {(1, "train")},
    "policy.train.learning_rate=0.1": {(1, "train")},
    "evaluate.temperature=0.5": {(0, "evaluate"), (2, "evaluate")},
    "person.longest=100": {(0, "evaluate"), (0, "rollout"), (2, "evaluate")},
    "seed=3": set(STEPS["method=sweet"]),
}


def test_a_changed_setting_changes_the_steps_that_depend_on_it_and_no_other() -> None:
    before = made()
    for word, steps in CHANGES.items():
        after = made(word)
        changed = {
            (step.iteration, step.stage)
            for step in before.steps()
            if before.fingerprint(step) != after.fingerprint(step)
        }
        assert changed == steps, word


def test_the_defaults_are_the_papers() -> None:
    """Section 5.1, table 5 and the released commands; presets may say otherwise for a world."""
    own = SweetSettings()
    assert (own.rollout.repeats, own.rollout.temperature, own.rollout.max_tokens) == (3, 1.0, 1024)
    assert (own.critic.kind, own.critic.privileged) == ("likelihood", True)
    critic, policy = own.critic.objective, own.policy.objective
    assert (critic.beta, critic.nll, critic.normalise) == (0.1, 0.01, "turns")
    for one in (policy, own.multi_turn_dpo.objective):
        assert (one.beta, one.nll, one.normalise, one.label_smoothing) == (0.1, 0.01, "none", 0)
    assert (own.candidates.share, own.candidates.count, own.candidates.temperature) == (0.1, 16, 1)
    assert (own.pairs.count, own.pairs.top_share, own.least_reward) == (4, 0.5, 1.0)
    assert (own.person.temperature, own.person.longest, own.method) == (0.0, 400, "sweet")


# -- round 0: the critic, and the baselines -----------------------------------------------------


class Enough(Exception):
    """Nothing more is to be done."""


@dataclass
class Training:
    """What was to be trained."""

    model: Any
    items: list[Any]
    settings: Any
    objective: Any


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    seen: list[Training] = []

    def train(
        model: Any, items: Any, settings: Any, folder: Path, *, objective: Any = None, **_: Any
    ) -> None:
        seen.append(Training(model, list(items), settings, objective or SFT()))
        raise Enough

    monkeypatch.setattr(sweet_training, "train", train)
    return seen


def trained(seen: list[Training], run: Run, step: Step, *words: str) -> Training:
    """What a step of a recipe under these settings hands to ``train``."""
    with pytest.raises(Enough):
        made(*WORDS, *words).do(run, step, Silent())
    assert weight_hash(bare(seen[-1].model)) == weight_hash(base().model), "begins as the base"
    return seen[-1]


def bare(model: Any) -> Any:
    """A model without its value head."""
    if find_head(model) is not None:
        model = load_like(model)
    return model


def load_like(model: Any) -> Any:
    fresh = load(BASE).model
    fresh.load_state_dict({k: w for k, w in model.state_dict().items() if "value_head" not in k})
    return fresh


def text(ids: Sequence[int]) -> str:
    return base().renderer.decode(ids)


def said(rows: Sequence[Row]) -> list[str]:
    """The targets of a side."""
    return [text(one.ids[t.start : t.stop]) for one in rows for t in one.targets]


def by_base(rows: Sequence[Row], normalise: Any) -> float:
    """A side's number under the frozen base."""
    with torch.no_grad():
        return float(side_statistic(rows, row_logprobs(base().model, rows), normalise))


def test_the_critic_learns_a_success_over_a_failure_with_the_reference_shown(
    run: Run, trainings: list[Training]
) -> None:
    words = ("critic.objective.beta=0.3", "critic.objective.nll=0.07", "critic.train.batch_rows=5")
    got = trained(trainings, run, TRAIN, *words)
    assert isinstance(got.objective, DPO)
    asked = got.objective.settings
    assert (asked.beta, asked.nll, asked.normalise) == (0.3, 0.07, "turns")
    assert got.settings.batch_rows == 5
    assert len(got.items) == 2
    for pair in got.items:
        assert RIGHT in said(pair.chosen)[-1] and WRONG in said(pair.rejected)[-1]
        for one in (*pair.chosen, *pair.rejected):
            assert text(one.ids).count(REFERENCE_CODE) == 1
            assert not any("Reply" in words for words in said([one])), "the person's words"
        expected = [by_base(side, "turns") for side in (pair.chosen, pair.rejected)]
        assert pair.reference == pytest.approx(expected, abs=1e-3)


def test_a_critic_without_privileges_is_trained_without_the_reference(
    run: Run, trainings: list[Training]
) -> None:
    got = trained(trainings, run, TRAIN, "critic.privileged=false")
    assert len(got.items) == 2
    assert not any(SECRET in text(r.ids) for p in got.items for r in (*p.chosen, *p.rejected))


@pytest.mark.parametrize("privileged", [True, False])
def test_a_value_function_is_told_which_dialogues_succeeded(
    run: Run, trainings: list[Training], privileged: bool
) -> None:
    word = f"critic.privileged={str(privileged).lower()}"
    got = trained(trainings, run, TRAIN, "critic.kind=classifier", word)
    assert isinstance(got.objective, Classifier) and find_head(got.model) is not None
    assert len(got.items) == 6
    for item in got.items:
        assert item.success == (RIGHT in said(item.rows)[-1])
        assert all((SECRET in text(one.ids)) == privileged for one in item.rows)


def test_a_reward_model_is_trained_on_the_critics_pairs(
    run: Run, trainings: list[Training]
) -> None:
    got = trained(trainings, run, TRAIN, "critic.kind=regression")
    assert isinstance(got.objective, Regression) and find_head(got.model) is not None
    assert [SECRET in text(pair.chosen[0].ids) for pair in got.items] == [True, True]
    assert all(RIGHT in said(pair.chosen)[-1] for pair in got.items)


def test_multi_turn_dpo_trains_the_policy_on_whole_dialogues_as_it_saw_them(
    run: Run, trainings: list[Training]
) -> None:
    words = ("multi_turn_dpo.objective.beta=0.3", "multi_turn_dpo.train.batch_rows=5")
    got = trained(trainings, run, TRAIN, "method=multi_turn_dpo", *words)
    assert isinstance(got.objective, DPO)
    asked = got.objective.settings
    assert (asked.beta, asked.nll, asked.normalise) == (0.3, 0.01, "none")
    assert got.settings.batch_rows == 5
    for pair in got.items:
        assert RIGHT in said(pair.chosen)[-1] and len(said(pair.chosen)) > 1
        assert not any(SECRET in text(one.ids) for one in (*pair.chosen, *pair.rejected))
        expected = [by_base(side, "none") for side in (pair.chosen, pair.rejected)]
        assert pair.reference == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("least", "count"), [(1.0, 2), (0.5, 3), (0.1, 6)])
def test_rejection_ft_imitates_what_succeeded(
    played_only: Run, trainings: list[Training], least: float, count: int
) -> None:
    words = ("method=rejection_ft", f"least_reward={least}", "rejection_ft.train.batch_rows=5")
    assert made(*WORDS, *words).select(played_only)["selected"] == count
    got = trained(trainings, played_only, TRAIN, *words)
    assert isinstance(got.objective, SFT) and got.settings.batch_rows == 5
    assert len(got.items) == count + 1  # thoughts leave the history, and so begin a row
    assert sum(RIGHT in said([one])[-1] for one in got.items) == 2
    assert not any(SECRET in text(one.ids) for one in got.items)


@pytest.mark.parametrize(
    ("least", "pairs"), [(1.0, [(1.0, 0.1)] * 2), (0.5, [(0.5, 0.1), *[(1.0, 0.1)] * 2])]
)
def test_pairs_need_a_dialogue_that_is_good_enough(
    played_only: Run, least: float, pairs: list[tuple[float, float]]
) -> None:
    recipe = made(*WORDS, f"least_reward={least}")
    recipe.select(played_only)
    rewards, found = recipe.rewards(played_only), []
    assert sorted(rewards.values()) == [0.1, 0.1, 0.1, 0.5, 1.0, 1.0]
    for task, one in played_only.store.selections(0, "select"):
        outcomes = played_only.store.tree(0, "rollout", task).outcomes
        better, worse = (outcomes[leaf].sample for leaf in (one.leaf, str(one.rejected)))
        found.append((rewards[task, better], rewards[task, worse]))
    assert sorted(found) == pairs


# -- round 1: candidates, their ranks, and the policy -------------------------------------------


def test_the_first_dialogue_of_every_task_gets_candidates_before_the_second_of_any(
    run: Run,
) -> None:
    assert [one.sample for one in played(run, 0.5)] == [0, 0, 0]
    assert [one.sample for one in played(run, 1.0)] == [0, 0, 0, 1, 1, 1]
    assert [one.sample for one in played(run, 0.01)] == [0]


def test_candidates_are_the_base_policys_under_the_prompt_of_the_turn(run: Run) -> None:
    found = list(groups(run))
    assert [len(group) for *_, group in found] == [4] * 11  # every turn of every dialogue
    own = [turn.sample for *_, group in found for turn in group]
    assert all(one is not None for one in own)
    seeds = [one.seed for one in own if one]
    assert len(set(seeds)) == len(seeds)
    assert {(one.version, one.temperature) for one in own if one} == {("0", 0.9)}
    expected = set()
    for tree in run.store.trees(0, "rollout"):
        for leaf in tree.outcomes:
            expected |= {prompt for prompt, _ in prompts(tree, leaf, AGENT)}
    shown = [prompts(tree, turn.id, AGENT)[-1][0] for _, tree, group in found for turn in group]
    assert set(shown) == expected and not any(SECRET in text(prompt) for prompt in shown)


def prompt_of(tree: Tree, turn: Turn, *, privileged: bool) -> tuple[int, ...]:
    """What a critic reads before a candidate, put together by hand."""
    system, *rest = tree.messages(tree.requests[str(turn.prompt)])
    if privileged:
        more = Part(f"\nReference:\n{REFERENCE_CODE}")
        system = replace(system, parts=(*system.parts, more))
    return base().renderer.render([system, *rest], tree, AGENT)


def log_ratios(
    run: Run, tree: Tree, group: Sequence[Turn], *, privileged: bool
) -> list[list[float]]:
    critic = load(run.training_folder(0) / "final")
    prompt = prompt_of(tree, group[0], privileged=privileged)
    found = []
    for turn in group:
        ids, start = (*prompt, *turn.ids), len(prompt)
        both = (naive(one.model, ids, start) for one in (critic, base()))
        found.append([ours - before for ours, before in zip(*both, strict=True)])
    return found


def test_a_candidates_reward_is_its_mean_log_ratio_where_the_reference_is_shown(
    run: Run, own: SweetRL
) -> None:
    for _, tree, group in list(groups(run))[:3]:
        nodes = [turn.id for turn in group]
        found = run.store.credit(own.fingerprint(REWARD), "advantage", nodes)
        ratios = log_ratios(run, tree, group, privileged=True)
        means = [sum(one) / len(one) for one in ratios]
        assert [found[node] for node in nodes] == pytest.approx(means, abs=1e-3)
        assert max(means) - min(means) > 0.01


@pytest.mark.parametrize(
    ("word", "privileged", "summed"),
    [("critic.privileged=false", False, False), ("critic.objective.normalise=none", True, True)],
)
def test_ablations_of_the_critic_change_what_it_reads_or_how_it_counts(
    run: Run, word: str, privileged: bool, summed: bool
) -> None:
    task, tree, group = list(groups(run))[1]
    found = advantages(run, task, tree, group, word)
    ratios = log_ratios(run, tree, group, privileged=privileged)
    expected = [sum(one) / (1 if summed else len(one)) for one in ratios]
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["regression", "classifier"])
def test_a_head_gives_the_mean_of_a_candidate_or_the_value_at_its_end(run: Run, kind: str) -> None:
    task, tree, group = list(groups(run))[1]
    found = advantages(run, task, tree, group, f"critic.kind={kind}")
    critic = load(run.training_folder(0) / "final")
    head = torch.randn(
        1, critic.model.config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    prompt, expected = prompt_of(tree, group[0], privileged=True), []
    for turn in group:
        with torch.no_grad():
            hidden = critic.model.model(torch.tensor([(*prompt, *turn.ids)])).last_hidden_state[0]
        values = (hidden @ head[0])[len(prompt) :]
        expected.append(float(values.mean() if kind == "regression" else values[-1]))
    assert found == pytest.approx(expected, abs=1e-2)


def advantages(run: Run, task: Task, tree: Tree, group: Sequence[Turn], word: str) -> list[float]:
    recipe = made(*WORDS, word)

    async def ask() -> list[float]:
        settings = recipe.settings.critic
        async with open_critic(recipe, run, settings, recipe.environment) as critic:
            return await critic.advantages(task, tree, group)

    try:
        return asyncio.run(ask())
    finally:
        recipe.close()


def test_pairs_of_turns_are_of_the_upper_half_over_the_lower_each_turn_drawn_anew(
    run: Run, own: SweetRL
) -> None:
    selected = [one for _, one in run.store.selections(1, "select")]
    drawn = set()
    for _, _, group in groups(run):
        scores = run.store.credit(own.fingerprint(REWARD), "advantage", [t.id for t in group])
        ranked = sorted(scores, key=lambda node: -scores[node])
        mine = [(one.leaf, str(one.rejected)) for one in selected if one.leaf in scores]
        places = [(ranked.index(better), ranked.index(worse)) for better, worse in mine]
        if len(set(scores.values())) == 4:
            assert len(places) == 4
            assert all(better < 2 <= worse for better, worse in places)
            drawn.add(tuple(places))
    assert len(drawn) > 2


def test_the_policy_learns_turns_from_the_base_without_the_reference(
    run: Run, trainings: list[Training]
) -> None:
    words = ("policy.objective.beta=0.3", "policy.objective.nll=0.07", "policy.train.batch_rows=5")
    got = trained(trainings, run, Step(1, "train"), *words)
    assert isinstance(got.objective, DPO)
    asked = got.objective.settings
    assert (asked.beta, asked.nll, asked.normalise) == (0.3, 0.07, "none")
    assert got.settings.batch_rows == 5
    selected = run.store.selections(1, "select")
    assert len(got.items) == len(selected)
    for pair, (task, one) in zip(got.items, selected, strict=True):
        tree = run.store.tree(1, "rollout", task)
        for (side,), leaf in ((pair.chosen, one.leaf), (pair.rejected, str(one.rejected))):
            (target,) = side.targets
            assert side.ids[target.start : target.stop] == tree.turns[leaf].ids
            assert SECRET not in text(side.ids)
    for pair in got.items[:3]:
        expected = [by_base(side, "none") for side in (pair.chosen, pair.rejected)]
        assert pair.reference == pytest.approx(expected, abs=1e-3)


def test_a_critic_is_no_policy(played_only: Run, own: SweetRL) -> None:
    played_only.begin(TRAIN, own.fingerprint(TRAIN))
    played_only.finish(TRAIN, own.fingerprint(TRAIN), {"rows": 2})
    assert own.versions(played_only) == [0]
    assert made("method=multi_turn_dpo").versions(played_only) == [0, 1]


class Failing:
    """A critic that can't judge candidates of one turn, or of any."""

    def __init__(self, fails: set[str], error: type[EngineError] = EngineError) -> None:
        self.fails, self.error = fails, error
        self.counts: dict[str, int] = {}

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        if group[0].id in self.fails:
            raise self.error("no room")
        return [float(place) for place, _ in enumerate(group)]


def test_a_turn_that_the_critic_fails_on_is_counted_and_costs_no_other(run: Run) -> None:
    task, tree, _ = next(groups(run))
    found = candidates(tree)
    firsts = {group[0].id for group in found}
    bad = found[0]
    done = asyncio.run(scored(Failing({bad[0].id}), task, tree, "s"))
    assert done.metrics == {"turns": len(found) - 1, "unscored": 1} and done.failure is None
    assert {one.node: one.value for one in done.credit} == {
        turn.id: float(place) for group in found[1:] for place, turn in enumerate(group)
    }
    done = asyncio.run(scored(Failing(firsts), task, tree, "s"))
    assert done.failure == "no room" and not done.credit
    with pytest.raises(EngineGone):
        asyncio.run(scored(Failing({bad[0].id}, EngineGone), task, tree, "s"))


@pytest.mark.parametrize("privileged", [True, False])
def test_a_judge_reads_what_was_said_and_the_reference_if_it_may(
    run: Run, own: SweetRL, privileged: bool
) -> None:
    asked: list[str] = []

    async def say(messages: Sequence[Any]) -> str:
        asked.append(messages[-1].text)
        return "A"

    task, tree, group = next(
        (task, tree, group) for task, tree, group in groups(run) if len(tree.path(group[0].id)) > 2
    )
    replies = [
        make_turn(group[0].parent, Speaker("agent", AGENT), [Part(f"my thoughts OUTPUT: {word}?")])
        for word in ("Which", "Why")
    ]
    critic = JudgeOfTurns(own.environment, Judge(say, opponents=1), privileged)
    assert asyncio.run(critic.advantages(task, tree, replies)) == [0.5, 0.5]
    for one in asked:
        assert (SECRET in one) == privileged
        assert "Reply 1." in one and "Which?" in one and "Why?" in one
        assert "Hm." not in one and "my thoughts" not in one
        assert str(task.public["question"]) in one


def test_only_a_critic_may_read_the_reference_in_its_prompt(run: Run) -> None:
    task, tree, group = next(groups(run))
    shown = with_reference(task)(tree.messages(tree.requests[str(group[0].prompt)]))
    renderer = base().renderer
    assert REFERENCE_CODE in renderer.decode(renderer.render(shown, tree, AGENT, privileges=CRITIC))
    for privileges in (None, "stranger"):
        with pytest.raises(PrivilegeError):
            renderer.render(shown, tree, AGENT, privileges=privileges)


# -- at test time -------------------------------------------------------------------------------


def test_of_n_candidates_the_one_with_the_highest_score_is_said() -> None:
    loaded = load(BASE)
    engine = InProcessEngine(loaded, policy="p", version="0")
    voice = TokenVoice(engine, loaded.renderer.render, Sampling(max_tokens=8), 512)
    shown = (Message.of("system", "You are Alice."), Message.of("user", "Which river is long?"))

    async def score(tree: Tree, turns: Sequence[Turn]) -> list[float]:
        return [0.1, 0.9, 0.4, 0.2]

    def speak(seed: int) -> tuple[Tree, Turn, Memory]:
        tree, memory = Tree("t", "evaluate", 0), Memory()
        ask = Ask(tree, tree.root, AGENT, shown, seed, 0)
        best = BestOfVoice(voice, 4, score)
        return tree, asyncio.run(best.speak(ask, memory)).turn, memory

    seeds = []
    for seed in (1, 2):
        tree, turn, memory = speak(seed)
        (group,) = candidates(tree)
        assert len(group) == 4 and turn.id == group[1].id == memory.turn
        seeds += [one.sample.seed for one in group if one.sample]
    assert len(set(seeds)) == 8
    assert speak(1)[1].ids == speak(1)[1].ids
