"""SWEET-RL: pairs and critics of round 0, candidates, rewards and pairs of round 1, and what is handed to training.

The dialogues come from a file, and a model with noise stands in for the trained critic. No weights are trained.
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
from coterie.environments.collaboration import CRITIC, with_reference
from coterie.environments.protocol import AGENT
from coterie.models.adapters import HEAD_FILE, find_head
from coterie.models.loading import LoadedModel, load
from coterie.progress import Silent
from coterie.recipes.sweet_rl import JudgeCritic, SweetRL, dialogues_to_branch, score_candidates
from coterie.record.rows import Row, prompts
from coterie.record.tree import Task, Tree
from coterie.record.turn import Message, Part, PrivilegeError, Speaker, Turn, make_turn
from coterie.rewards.critics import Judge
from coterie.rollout.candidates import BestOfSampler, candidates
from coterie.rollout.samplers import AgentContext, Prompt, TokenSampler
from coterie.runs.loop import run_stages
from coterie.runs.run import Run, StageKey, open_run
from coterie.training import trainer
from coterie.training.checkpoint import weight_hash
from coterie.training.losses import DPO, SFT, Classifier, Regression, side_statistic
from coterie.training.reference import row_logprobs
from tests.recipes.test_sweet_offline import REFERENCE_CODE, RIGHT, WRONG, made, row, wrote
from tests.rewards.test_step_critic import moved, naive

BASE = "tiny-exchange"
WORDS = (
    "rollout.tasks=3",
    "rollout.rollouts_per_task=2",
    "candidates.share=1",
    "candidates.temperature=0.9",
)
SECRET = "boxes * 12"
"""Text that only the reference contains."""
ROWS = [
    row(0, "Hm. OUTPUT: How many in a box?", RIGHT, reward=1.0),
    row(1, "How many?", WRONG, reward=0.1),
    row(2, "Why?", WRONG, reward=0.5),
    row(0, WRONG, reward=0.1),
    row(1, "Big ones?", "Red?", RIGHT, reward=1),
    row(2, WRONG, reward=0.1),
]
"""Two dialogues of each of three tasks, two of which were solved once."""
TRAIN, REWARD = StageKey(0, "train"), StageKey(1, "reward")


@dataclass
class Training:
    model: Any
    items: list[Any]
    settings: Any
    objective: Any


class Given(Exception):
    """Raised instead of training."""


@cache
def base() -> LoadedModel:
    return load(BASE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run with selected pairs, a critic that has a value head, and ranked candidates."""
    folder = tmp_path_factory.mktemp("steps")
    recipe = made(*WORDS, f"offline={wrote(folder / 'theirs.jsonl', ROWS)}")
    with open_run(folder / "run", recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), [StageKey(0, "rollout"), StageKey(0, "select")])
        critic, final = moved(0), run.training_folder(0, CRITIC) / "final"
        critic.model.save_pretrained(final)
        critic.tokenizer.save_pretrained(final)
        head = {"value_head.weight": head_weights(critic), "value_head.bias": torch.zeros(1)}
        save_file(head, final / HEAD_FILE)
        for stage in ("rollout", "reward", "select"):
            recipe.find_stage(StageKey(1, stage)).do(run, 1, Silent())
        yield run
    recipe.close()


def head_weights(critic: LoadedModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, critic.model.config.hidden_size, generator=generator)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    captured: list[Training] = []

    def train(
        model: Any, items: Any, settings: Any, folder: Path, *, objective: Any = None, **_: Any
    ) -> None:
        captured.append(Training(model, list(items), settings, objective or SFT()))
        raise Given

    monkeypatch.setattr(trainer, "train", train)
    return captured


def trained(captured: list[Training], run: Run, step: StageKey, *overrides: str) -> Training:
    """Return what a step hands to training. Checks that the model is the base."""
    with pytest.raises(Given):
        made(*WORDS, *overrides).find_stage(step).do(run, step.iteration, Silent())
    model = captured[-1].model
    if find_head(model) is not None:
        weights = {k: w for k, w in model.state_dict().items() if "value_head" not in k}
        model = load(BASE).model
        model.load_state_dict(weights)
    assert weight_hash(model) == weight_hash(base().model)
    return captured[-1]


def groups(run: Run) -> Iterator[tuple[Task, Tree, list[Turn]]]:
    for tree in run.store.trees(1, "rollout"):
        for group in candidates(tree):
            yield run.store.task(tree.task), tree, group


def text(ids: Sequence[int]) -> str:
    return base().renderer.decode(ids)


def targets(rows: Sequence[Row]) -> list[str]:
    return [text(one.ids[t.start : t.stop]) for one in rows for t in one.targets]


def by_base(rows: Sequence[Row], reduction: Any) -> float:
    """Return the statistic of one side of a pair under the frozen base."""
    with torch.no_grad():
        return float(side_statistic(rows, row_logprobs(base().model, rows), reduction))


# -- round 0 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "nll", "reduction", "references"),
    [("critic", 0.07, "turns", 1), ("multi_turn_dpo", 0.01, "none", 0)],
)
def test_pairs_of_dialogues_train_the_critic_with_the_reference_or_the_policy_without(
    run: Run, trainings: list[Training], group: str, nll: float, reduction: str, references: int
) -> None:
    overrides = (f"{group}.objective.beta=0.3", f"{group}.train.batch_size=5")
    method = "sweet" if group == "critic" else group
    got = trained(
        *(
            trainings,
            run,
            TRAIN,
            f"method={method}",
            *overrides,
            f"{group}.objective.nll_coef={nll}",
        )
    )
    assert isinstance(got.objective, DPO)
    s = got.objective.settings
    assert (s.beta, s.nll_coef, s.reduction) == (0.3, nll, reduction)
    assert got.settings.batch_size == 5 and len(got.items) == 2
    for pair in got.items:
        assert RIGHT in targets(pair.chosen)[-1] and WRONG in targets(pair.rejected)[-1]
        assert len(targets(pair.chosen)) > 1
        for one in (*pair.chosen, *pair.rejected):
            assert text(one.ids).count(REFERENCE_CODE) == references
            assert not any("Reply" in turn for turn in targets([one])), "words of the user"
        expected = [by_base(side, reduction) for side in (pair.chosen, pair.rejected)]
        assert pair.reference == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("privileged", [True, False])
def test_critics_with_a_head_learn_success_of_dialogues_or_pairs(
    run: Run, trainings: list[Training], privileged: bool
) -> None:
    word = f"critic.privileged={str(privileged).lower()}"
    got = trained(trainings, run, TRAIN, "critic.kind=classifier", word)
    assert isinstance(got.objective, Classifier) and find_head(got.model) is not None
    assert len(got.items) == 6
    for item in got.items:
        assert item.success == (RIGHT in targets(item.rows)[-1])
        assert all((SECRET in text(one.ids)) == privileged for one in item.rows)
    got = trained(trainings, run, TRAIN, "critic.kind=regression", word)
    assert isinstance(got.objective, Regression) and find_head(got.model) is not None
    assert [SECRET in text(pair.chosen[0].ids) for pair in got.items] == [privileged] * 2
    assert all(RIGHT in targets(pair.chosen)[-1] for pair in got.items)


@pytest.mark.parametrize(("least", "count"), [(1.0, 2), (0.5, 3), (0.1, 6)])
def test_rejection_ft_imitates_successes(
    tmp_path: Path, trainings: list[Training], least: float, count: int
) -> None:
    overrides = ("method=rejection_ft", f"min_reward={least}", "rejection_ft.train.batch_size=5")
    recipe = made(*WORDS, *overrides, f"offline={wrote(tmp_path / 'theirs.jsonl', ROWS)}")
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), [StageKey(0, "rollout"), StageKey(0, "select")])
        assert run.metrics(StageKey(0, "select"))["selected"] == count
        got = trained(trainings, run, TRAIN, *overrides)
    assert isinstance(got.objective, SFT) and got.settings.batch_size == 5
    assert len(got.items) == count + 1  # thoughts leave the history, which begins a new row
    assert sum(RIGHT in targets([one])[-1] for one in got.items) == 2
    assert not any(SECRET in text(one.ids) for one in got.items)


@pytest.mark.parametrize(
    ("word", "first", "second", "versions"),
    [
        ("method=sweet", "select train", "rollout reward select train", [0]),
        ("critic.kind=judge", "", "rollout reward select train", [0]),
        ("method=rejection_ft", "select train", "", [0, 1]),
        ("method=multi_turn_dpo", "select train", "", [0, 1]),
    ],
)
def test_stages_of_a_method_and_a_critic_is_no_version_of_the_policy(
    tmp_path: Path, word: str, first: str, second: str, versions: list[int]
) -> None:
    recipe = made(word)
    rounds = [f"evaluate rollout {first}".split(), second.split()]
    steps = [StageKey(i, name) for i, names in enumerate(rounds) for name in names]
    assert recipe.stage_keys() == [*steps, StageKey(2 if second else 1, "evaluate")]
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        if TRAIN in steps:
            run.begin(TRAIN, recipe.fingerprint(TRAIN))
            run.finish(TRAIN, recipe.fingerprint(TRAIN), {"rows": 2})
        assert recipe.versions(run) == versions


# -- candidates -------------------------------------------------------------------------------


def test_the_first_dialogue_of_every_task_gets_candidates_before_the_second_of_any(
    run: Run,
) -> None:
    assert [one.sample for one in dialogues_to_branch(run, 0.5)] == [0, 0, 0]
    assert [one.sample for one in dialogues_to_branch(run, 1.0)] == [0, 0, 0, 1, 1, 1]
    assert [one.sample for one in dialogues_to_branch(run, 0.01)] == [0]


def test_candidates_are_the_base_policys_under_the_prompt_of_the_turn(run: Run) -> None:
    turns = list(groups(run))
    assert [len(group) for *_, group in turns] == [4] * 11  # every turn of every dialogue
    samples = [turn.sample for *_, group in turns for turn in group]
    seeds = [one.seed for one in samples if one]
    assert len(set(seeds)) == len(seeds) == 44
    assert {(one.version, one.temperature) for one in samples if one} == {("0", 0.9)}
    expected = set()
    for tree in run.store.trees(0, "rollout"):
        for leaf in tree.outcomes:
            expected |= {prompt for prompt, _ in prompts(tree, leaf, AGENT)}
    shown = [prompts(tree, turn.id, AGENT)[-1][0] for _, tree, group in turns for turn in group]
    assert set(shown) == expected and not any(SECRET in text(prompt) for prompt in shown)


def prompt_of(tree: Tree, turn: Turn, *, privileged: bool) -> tuple[int, ...]:
    """Return what a critic reads before a candidate, built by hand."""
    system, *rest = tree.messages(tree.requests[str(turn.prompt)])
    if privileged:
        reference = Part(f"\nReference:\n{REFERENCE_CODE}")
        system = replace(system, parts=(*system.parts, reference))
    return base().renderer.render([system, *rest], tree, AGENT)


def advantages(run: Run, task: Task, tree: Tree, group: Sequence[Turn], word: str) -> list[float]:
    recipe = made(*WORDS, word)

    async def ask() -> list[float]:
        async with recipe.open_critic(run) as critic:
            return await critic.advantages(task, tree, group)

    try:
        return asyncio.run(ask())
    finally:
        recipe.close()


@pytest.mark.parametrize(
    ("word", "privileged", "summed"),
    [
        ("", True, False),
        ("critic.privileged=false", False, False),
        ("critic.objective.reduction=none", True, True),
    ],
)
def test_a_candidates_reward_is_its_mean_log_ratio_given_the_reference(
    run: Run, word: str, privileged: bool, summed: bool
) -> None:
    critic = load(run.training_folder(0, CRITIC) / "final")
    for task, tree, group in list(groups(run))[1 : 2 if word else 4]:
        prompt, expected = prompt_of(tree, group[0], privileged=privileged), []
        for turn in group:
            ids, start = (*prompt, *turn.ids), len(prompt)
            both = (naive(one.model, ids, start) for one in (critic, base()))
            ratios = [ours - before for ours, before in zip(*both, strict=True)]
            expected.append(sum(ratios) / (1 if summed else len(ratios)))
        if word:
            scores = advantages(run, task, tree, group, word)
        else:
            nodes = [turn.id for turn in group]
            settings = SweetRL(run.settings).fingerprint(REWARD)
            credit = run.store.credit(settings, "advantage", nodes)
            scores = [credit[node] for node in nodes]
        assert scores == pytest.approx(expected, abs=1e-3)
        assert max(scores) - min(scores) > 0.01


@pytest.mark.parametrize("kind", ["regression", "classifier"])
def test_a_head_gives_the_mean_of_a_candidate_or_the_value_at_its_end(run: Run, kind: str) -> None:
    task, tree, group = list(groups(run))[1]
    critic = load(run.training_folder(0, CRITIC) / "final")
    head = head_weights(critic)[0]
    prompt, expected = prompt_of(tree, group[0], privileged=True), []
    for turn in group:
        with torch.no_grad():
            hidden = critic.model.model(torch.tensor([(*prompt, *turn.ids)])).last_hidden_state[0]
        values = (hidden @ head)[len(prompt) :]
        expected.append(float(values.mean() if kind == "regression" else values[-1]))
    scores = advantages(run, task, tree, group, f"critic.kind={kind}")
    assert scores == pytest.approx(expected, abs=1e-2)


def test_pairs_of_turns_are_of_the_upper_half_over_the_lower_each_turn_drawn_anew(
    run: Run,
) -> None:
    selected = [one for _, one in run.store.selections(1, "select")]
    settings, drawn = SweetRL(run.settings).fingerprint(REWARD), set()
    for _, _, group in groups(run):
        scores = run.store.credit(settings, "advantage", [turn.id for turn in group])
        ranked = sorted(scores, key=lambda node: -scores[node])
        pairs = [(one.leaf, str(one.rejected)) for one in selected if one.leaf in scores]
        places = [(ranked.index(better), ranked.index(worse)) for better, worse in pairs]
        if len(set(scores.values())) == 4:
            assert len(places) == 4
            assert all(better < 2 <= worse for better, worse in places)
            drawn.add(tuple(places))
    assert len(drawn) > 2


def test_the_policy_learns_turns_from_the_base_without_the_reference(
    run: Run, trainings: list[Training]
) -> None:
    overrides = (
        "policy.objective.beta=0.3",
        "policy.objective.nll_coef=0.07",
        "policy.train.batch_size=5",
    )
    got = trained(trainings, run, StageKey(1, "train"), *overrides)
    assert isinstance(got.objective, DPO)
    s = got.objective.settings
    assert (s.beta, s.nll_coef, s.reduction) == (0.3, 0.07, "none")
    assert got.settings.batch_size == 5
    earlier_turns = set()
    for pair, (task, one) in zip(got.items, run.store.selections(1, "select"), strict=True):
        tree = run.store.tree(1, "rollout", task)
        for side, leaf in ((pair.chosen, one.leaf), (pair.rejected, str(one.rejected))):
            trained_ids = [row.ids[t.start : t.stop] for row in side for t in row.targets]
            assert trained_ids == [tree.turns[leaf].ids], "earlier turns are not compared"
            assert not any(SECRET in text(row.ids) for row in side)
            earlier_turns.add(len(prompts(tree, leaf, AGENT)) - 1)
    assert earlier_turns == {0, 1, 2}
    for pair in got.items[:3]:
        expected = [by_base(side, "none") for side in (pair.chosen, pair.rejected)]
        assert pair.reference == pytest.approx(expected, abs=1e-3)


@dataclass
class FailingCritic:
    """Critic that fails on some turns."""

    fails: set[str]
    error: type[EngineError] = EngineError

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        if group[0].id in self.fails:
            raise self.error("no room")
        return [float(place) for place, _ in enumerate(group)]


def test_a_turn_that_the_critic_fails_on_is_counted_and_costs_no_other(run: Run) -> None:
    task, tree, _ = next(groups(run))
    bad, *others = turns = candidates(tree)

    def score(fails: set[str], error: type[EngineError] = EngineError) -> Any:
        return asyncio.run(score_candidates(FailingCritic(fails, error), task, tree, "s"))  # type: ignore[arg-type]

    item = score({bad[0].id})
    assert item.metrics == {"turns": len(others), "unscored": 1} and item.failure is None
    assert {one.node: one.value for one in item.credit} == {
        turn.id: float(place) for group in others for place, turn in enumerate(group)
    }
    item = score({group[0].id for group in turns})
    assert item.failure == "no room" and not item.credit
    with pytest.raises(EngineGone):
        score({bad[0].id}, EngineGone)


@pytest.mark.parametrize("privileged", [True, False])
def test_a_judge_reads_visible_text_and_the_reference_if_it_may(run: Run, privileged: bool) -> None:
    questions: list[str] = []

    async def answer(messages: Sequence[Any]) -> str:
        questions.append(messages[-1].text)
        return "A"

    task, tree, group = next(one for one in groups(run) if len(one[1].path(one[2][0].id)) > 2)
    replies = [
        make_turn(group[0].parent, Speaker("agent", AGENT), [Part(f"my thoughts OUTPUT: {word}?")])
        for word in ("Which", "Why")
    ]
    environment = SweetRL(run.settings).environment
    critic = JudgeCritic(environment, Judge(answer, opponents=1), privileged)
    assert asyncio.run(critic.advantages(task, tree, replies)) == [0.5, 0.5]
    for question in questions:
        assert (SECRET in question) == privileged
        assert all(shown in question for shown in ("Reply 1.", "Which?", "Why?"))
        assert "Hm." not in question and "my thoughts" not in question
        assert str(task.public["question"]) in question


def test_only_a_critic_may_read_the_reference_in_its_prompt(run: Run) -> None:
    task, tree, group = next(groups(run))
    shown = with_reference(task)(tree.messages(tree.requests[str(group[0].prompt)]))
    render = base().renderer.render
    assert REFERENCE_CODE in text(render(shown, tree, AGENT, privileges=CRITIC))
    for privileges in (None, "stranger"):
        with pytest.raises(PrivilegeError):
            render(shown, tree, AGENT, privileges=privileges)


def test_of_n_candidates_the_one_with_the_highest_score_is_said() -> None:
    loaded = load(BASE)
    engine = InProcessEngine(loaded, policy="p", version="0")
    sampler = TokenSampler(engine, loaded.renderer.render, Sampling(max_tokens=8), 512)
    shown = (Message.of("system", "You are Alice."), Message.of("user", "Which river is long?"))

    async def score(tree: Tree, turns: Sequence[Turn]) -> list[float]:
        return [0.1, 0.9, 0.4, 0.2]

    def respond(seed: int) -> tuple[Tree, Turn]:
        tree = Tree("t", "evaluate", 0)
        prompt = Prompt(tree, tree.root, AGENT, shown, seed, 0)
        best = BestOfSampler(sampler, 4, score)
        return tree, asyncio.run(best.respond(prompt, AgentContext())).turn

    seeds = []
    for seed in (1, 2):
        tree, turn = respond(seed)
        (group,) = candidates(tree)
        assert len(group) == 4 and turn.id == group[1].id
        seeds += [one.sample.seed for one in group if one.sample]
    assert len(set(seeds)) == 8
    assert respond(1)[1].ids == respond(1)[1].ids
