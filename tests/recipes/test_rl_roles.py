"""Roles of reinforcement learning: agents that share one, roles that only play, rates, and training in turn."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from coterie.config.folders import make_folder
from coterie.errors import UserError
from coterie.models import adapters
from coterie.models.loading import load, load_renderer
from coterie.progress import Silent
from coterie.recipes.rl_plan import teacher_secrets
from coterie.record.rows import prompts
from coterie.record.tree import ANSWERED, Outcome, Secret, Task, Tree
from coterie.record.turn import Message, PrivilegeError
from coterie.rewards.dialogue_reward import PathReward
from coterie.rollout.episodes import first_prompts
from coterie.runs.joint_critic import NEXT_TURN, JointReader
from coterie.runs.loop import REINFORCE, run_stages
from coterie.runs.reinforce_batch import (
    HELP,
    _whole,
    paths_of,
    with_teacher_of,
    with_teacher_prompts,
)
from coterie.runs.reinforce_trees import tree_samples
from coterie.runs.roles import LearnerConfig, open_learner
from coterie.runs.run import StageKey, open_run
from coterie.runs.search_items import rollouts
from coterie.training.policy_gradient import PolicyGradient
from coterie.training.reference import with_teacher
from coterie.training.settings import TrainingSettings
from tests.helpers.run_rl import (
    SMALL,
    final_weights,
    informative_overrides,
    make_recipe,
    read_record,
    run_to_end,
)

TWO = "policies.roles={Alice: a, Bob: b}"


def writers(folder: Path) -> set[tuple[str, str, str]]:
    """Speaker, role and version of all sampled turns of the steps."""
    find = (
        "SELECT DISTINCT speaker, policy, version FROM turn JOIN tree ON turn.tree = tree.key "
        "WHERE stage LIKE 'reinforce/%'"
    )
    with closing(sqlite3.connect(folder / "store.sqlite")) as store:
        return {*store.execute(find)}


def test_a_frozen_role_plays_and_is_never_trained(tmp_path: Path) -> None:
    overrides = [
        *informative_overrides(tmp_path),
        TWO,
        "policies.frozen={b: tiny-exchange}",
        "steps.count=2",
    ]
    run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run/training").iterdir()} == {"a"}
    speakers = {(who, role): [] for who, role, _ in writers(tmp_path / "run")}
    for who, role, version in writers(tmp_path / "run"):
        speakers[who, role].append(version)
    assert sorted(speakers["Bob", "b"]) == ["0"]
    assert sorted(speakers["Alice", "a"]) == ["0", "0.1"]


def test_roles_train_in_turn_with_their_own_rates(tmp_path: Path) -> None:
    overrides = [*informative_overrides(tmp_path), TWO, "steps.count=2", "loss.kl_coef=0"]
    rates = ["policies.learning_rates={b: 0.01}", "policies.alternate_steps=1"]
    records = run_to_end(make_recipe("rl/grpo", [*overrides, *rates]), tmp_path / "run")
    assert [(r["a/updates"], r["b/updates"]) for r in records.values()] == [(1, 0), (1, 1)]
    assert "b/learning_rate" not in records[0]
    assert records[0]["a/learning_rate"] == pytest.approx(1e-3)
    assert records[1]["b/learning_rate"] == pytest.approx(1e-2)


def test_each_trained_role_has_a_critic_that_learns_in_its_steps(tmp_path: Path) -> None:
    overrides = [*SMALL, TWO, "rollout.tasks=3", "rollout.rollouts_per_task=1", "steps.count=2"]
    overrides += ["policies.alternate_steps=1", "critic.train.warmup_ratio=0"]
    records = run_to_end(make_recipe("rl/ppo", overrides), tmp_path / "run")
    updates = [(r["critic-a/updates"], r["critic-b/updates"]) for r in records.values()]
    assert updates == [(2, 0), (2, 2)]
    assert "critic-b/value_error" not in records[0] and records[1]["critic-b/value_error"] > 0
    roles = {path.name for path in (tmp_path / "run/training").iterdir()}
    assert roles == {"a", "b", "critic-a", "critic-b"}
    assert len({final_weights(tmp_path / "run", f"critic-{role}") for role in "ab"}) == 2
    assert {role for _, role, _ in writers(tmp_path / "run")} == {"a", "b"}


TOLD = """
from dataclasses import replace
from coterie.environments.exchange import Exchange
from coterie.record.tree import Secret

class Told(Exchange):
    def tasks(self, *arguments, **options):
        hint = Secret("zanzibar", name="hint", readers=frozenset({"critic"}))
        tasks = super().tasks(*arguments, **options)
        return [replace(task, secrets={**task.secrets, "hint": hint}) for task in tasks]

    async def act(self, state, turns, session, **options):
        transition = await super().act(state, turns, session, **options)
        return replace(transition, rewards={turns[-1].speaker.name: len(state.turns) / 8})
"""


def test_a_critic_of_the_joint_state_reads_what_no_prompt_of_an_agent_has(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    overrides = [*SMALL, f"environment={tmp_path / 'told.py'}:Told", "policies.weights=each"]
    overrides += ["critic.view=joint", "policies.alternate_steps=1", "steps.count=2"]
    recipe = make_recipe("rl/ppo", overrides)
    records = run_to_end(recipe, tmp_path / "run")
    updates = [f"{role}/updates" for role in ("Alice", "Bob", "critic")]
    assert [[r[name] for name in updates] for r in records.values()] == [[2, 0, 2], [2, 2, 4]]
    (renderer, _), asked = load_renderer("tiny-exchange"), list[Message]()

    class Noting:
        """The renderer, which notes the critic's prompts."""

        encode_content = renderer.encode_content

        def render(self, messages: Sequence[Message], tree: Tree, reader: str) -> tuple[int, ...]:
            asked.extend(messages)
            return renderer.render(messages, tree, reader)

    def bare(text: str | Sequence[int]) -> str:
        """Drop spaces, which the tokenizer of the tiny models does not keep."""
        return "".join((text if isinstance(text, str) else renderer.decode(text)).split())

    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        stage = "reinforce/00000"
        tasks = {name: run.store.task(name) for name in run.store.tree_tasks(0, stage)}
        prompts = {name: first_prompts(recipe.environment, task) for name, task in tasks.items()}
        reader, reward = JointReader(Noting(), tasks, prompts), PathReward(recipe.settings.reward)
        paths = paths_of(run.store, 0, stage, [*tasks], ("Alice", "Bob"), reward, reader)
        turns = {id_: t for tree in run.store.trees(0, stage) for id_, t in tree.turns.items()}
    for path in paths:
        row, secrets = path.joint.row, tasks[path.task].secrets
        before = bare(row.ids[: row.targets[0].start])
        for prompt in prompts[path.task].values():
            parts = [part.text for message in prompt.messages for part in message.parts]
            assert bare("".join(parts)) in before, "what both agents see at the beginning"
        assert bare("hint: zanzibar Alice sees:") in before
        assert bare(f"answer: {secrets['answer'].reveal('grader')}") not in before
        assert bare(f"reward of {path.agent} from") in before
        for target, later in pairwise(row.targets):
            text = f"{turns[target.turn].speaker.name}: {turns[target.turn].text}{NEXT_TURN}"
            assert bare(row.ids[target.start : later.start]) == bare(text)
        assert (row.targets[-1].turn == "") == path.outcome.ending.truncated
        mine = [turns[t.turn].speaker.name == path.agent for t in row.targets if t.turn]
        assert path.joint.rewards == tuple((n + 1) / 8 * is_mine for n, is_mine in enumerate(mine))
        assert "zanzibar" not in "".join(renderer.decode(row.ids) for row in path.rows)
    hidden = [part for part in asked[-1].parts if part.audience == {"critic"}]
    assert len(hidden) == 3, "the hint, and the views of two agents"
    with pytest.raises(PrivilegeError):
        renderer.render([Message("user", (hidden[-1],))], Tree("task", "rollout", 0), "Alice")


def test_agents_of_one_role_share_its_weights(tmp_path: Path) -> None:
    """All agents under one name are the same as no mapping, but for the name."""
    overrides = [*informative_overrides(tmp_path), "steps.count=1"]
    run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "plain")
    named = [*overrides, "policies.roles={Alice: team, Bob: team}"]
    run_to_end(make_recipe("rl/grpo", named), tmp_path / "named")
    assert final_weights(tmp_path / "named", "team") == final_weights(tmp_path / "plain")


LORA = ("train.method=lora", "train.lora_r=4", "rollout.max_tokens=12", "steps.count=2")
ONE_BASE = {
    "two policies": ("rl/grpo", [TWO]),
    "a frozen role": ("rl/grpo", [TWO, "policies.frozen={b: tiny-exchange}"]),
    "critics": ("rl/ppo", [TWO, "critic.train.warmup_ratio=0"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_BASE)
def test_adapters_of_one_base_train_as_on_bases_of_their_own(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, overrides = ONE_BASE[case]
    recorded = []
    for name in ("shared", "copied"):
        if name == "copied":
            monkeypatch.setattr(adapters, "share_weights", deepcopy)
        make_folder(tmp_path / name)
        recipe = make_recipe(method, [*informative_overrides(tmp_path / name), *LORA, *overrides])
        folder = tmp_path / name / "run"
        records = run_to_end(recipe, folder)
        timeless = [
            {key: value for key, value in record.items() if "second" not in key}
            for record in records.values()
        ]
        trained = {path.name for path in (folder / "training").iterdir()}
        weights = {role: final_weights(folder, role) for role in trained}
        recorded.append((timeless, weights, read_record(folder)["turn"]))
    assert recorded[0] == recorded[1]
    assert len(set(weights.values())) == len(trained), "each role has learned"


@pytest.mark.parametrize(
    ("overrides", "is_shared"),
    [
        (["train.method=lora"], True),
        (["train.method=lora", "train.dtype=bfloat16"], True),
        (["train.method=lora", "train.load_in_4bit=true"], True),
        (["train.method=full"], False),
    ],
    ids=["float32", "bfloat16", "4 bits", "full"],
)
def test_roles_of_one_model_have_its_weights_in_memory_once(
    overrides: list[str], is_shared: bool, tmp_path: Path
) -> None:
    """Adapters and frozen roles share the weights; a role that trains all weights has its own."""
    recipe = make_recipe("rl/grpo", [*SMALL, TWO, "policies.frozen={b: tiny-exchange}", *overrides])
    s, ids = recipe.settings, torch.arange(60)[None]
    with open_run(tmp_path / "run", recipe.name, s) as run:
        models, objective = recipe.models(run), PolicyGradient(s.loss.at(1.0))
        config = LearnerConfig("a", 0, ("Alice",), objective, s.policy_training, 1)
        with open_learner(run, models, 0, config) as learner:
            frozen, alone = models.load("b", 0).model, models.source("b", 0).load("cpu").model
            frozen_weights = {weight.data_ptr() for weight in frozen.parameters()}
            trained = {weight.data_ptr() for weight in learner.trainer.model.parameters()}
            assert (frozen_weights <= trained) == is_shared
            assert frozen_weights.isdisjoint(trained) != is_shared
            with torch.no_grad():
                assert torch.equal(frozen(ids).logits, alone(ids).logits)
        recipe.close()


@pytest.mark.parametrize(
    ("overrides", "sampling", "training"),
    [
        (["train.method=lora", "train.dtype=bfloat16"], 1, 1),
        (["train.method=lora"], 2, 1),  # samplers in float32 merge the adapters of later versions
        (["train.method=full"], 2, 2),
    ],
)
def test_the_plan_counts_shared_weights_once(overrides, sampling, training) -> None:
    def terms(*more: str) -> list[Mapping[str, int]]:
        plan = make_recipe("rl/grpo", [*SMALL, *overrides, *more]).plan()
        return [memory.terms for memory in plan.memory]

    (sampled, trained), (both_sampled, both_trained) = terms(), terms(TWO)
    assert both_sampled["weights"] == sampling * sampled["weights"]
    assert both_trained["weights"] == training * trained["weights"]
    _, beside_frozen = terms(TWO, "policies.frozen={b: tiny-exchange}")
    assert ("frozen models" in beside_frozen) == (training > 1)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["policies.roles={Carl: a}"], "Carl, which is no agent of exchange"),
        (["policies.frozen={b: tiny-exchange}"], "the role b, which plays no agent"),
        (["policies.learning_rates={b: 0.1}"], "the role b, which plays no agent"),
        (["policies.frozen={policy: tiny-exchange}"], "nothing is trained"),
        (["policies.roles={Alice: a, Bob: critic-a}", "advantage.baseline=values"], "'critic-a'"),
    ],
)
def test_roles_that_cannot_work_are_refused_before_the_run(overrides, problem) -> None:
    with pytest.raises(UserError, match=problem):
        make_recipe("rl/grpo", [*SMALL, *overrides]).plan()


def test_a_teacher_moves_a_policy_whose_rewards_are_equal(tmp_path: Path) -> None:
    """On-policy distillation has a gradient wherever the two differ; equal weights differ nowhere."""
    overrides = [*SMALL, "loss.kl_coef=0", "reward.team_weight=0", "steps.count=1"]
    make_folder(tmp_path / "moved")
    taught = [*informative_overrides(tmp_path / "moved"), "steps.count=1"]
    run_to_end(make_recipe("rl/grpo", taught), tmp_path / "moved/run")
    policy = tmp_path / "moved/run/training/policy/iteration-00/final"
    for model, is_moved in (("tiny-exchange", False), (str(policy), True)):
        recipe = make_recipe(
            "rl/grpo", [*overrides, "policies.teacher=tiny-exchange", f"model={model}"]
        )
        folder = tmp_path / f"run-{is_moved}"
        (record,) = run_to_end(recipe, folder).values()
        assert record["groups_informative"] == 0
        assert (float(record["policy/teacher_kl"]) > 1e-6) == is_moved


WORLD = """
from coterie import Ending, Message, Task
from coterie.environments import Grade, Pure, Transition

class World(Pure):
    name, metric, actors, limits = "world", "score", {"player": "agent"}, {"turns": 1}
    def tasks(self, split, count, seed, previous_counts=()):
        start = 0 if split == "heldout" else sum(previous_counts)
        return [Task(f"{split}-{n % 4}", {}) for n in range(start, start + count)]
    def next_actors(self, state):
        return ("player",)
    def observe(self, state, actor):
        return (Message.of("user", "Write something."),)
    async def act(self, state, taken, session, *, replayed=()):
        return Transition(end=Ending("over"))
    async def grade(self, state, session):
        is_easy = state.task.id.endswith(("0", "2"))
        return Grade(1.0 if is_easy else len(state.turns[0].text) % 11 / 10)
"""


def test_an_agent_that_acts_in_no_dialogue_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = '{"player": "agent", "judge": "agent"}'
    (tmp_path / "world.py").write_text(WORLD.replace('{"player": "agent"}', actors))
    overrides = [*SMALL, f"environment={tmp_path / 'world.py'}:World", "rollout.max_tokens=8"]
    recipe, progress, lines = make_recipe("rl/grpo", overrides), Silent(), list[str]()
    monkeypatch.setattr(progress, "say", lines.append)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_stages(recipe, run, progress, recipe.stage_keys()[:1])
    assert lines == ["warning: judge acts in no dialogue of evaluate 0"]


def test_a_role_that_acts_in_no_step_is_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = '{"player": "agent", "judge": "agent"}'
    (tmp_path / "world.py").write_text(WORLD.replace('{"player": "agent"}', actors))
    overrides = [*SMALL, f"environment={tmp_path / 'world.py'}:World", "rollout.max_tokens=8"]
    overrides += ["policies.weights=each", "steps.count=1"]
    recipe, progress, lines = make_recipe("rl/grpo", overrides), Silent(), list[str]()
    monkeypatch.setattr(progress, "say", lines.append)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_stages(recipe, run, progress, [StageKey(0, REINFORCE)])
    silent = [line for line in lines if "acted in no step" in line]
    assert silent == ["warning: judge is not trained: it acted in no step"]


PAID_BACK = WORLD.replace('{"turns": 1}', '{"turns": 2}').replace(
    'Transition(end=Ending("over"))',
    """Transition(
            end=Ending("over") if len(state.turns) == 2 else None,
            rewards={"player": len(state.turns[0].text) * (1.5 - len(state.turns))},
        )""",
)


def test_turns_of_different_returns_are_a_signal_where_all_rewards_are_equal(
    tmp_path: Path,
) -> None:
    """What the first turn gains the second one pays back."""
    (tmp_path / "world.py").write_text(PAID_BACK)
    overrides = [*SMALL, f"environment={tmp_path / 'world.py'}:World", "rollout.max_tokens=8"]
    recipe = make_recipe("rl/turns", [*overrides, "steps.count=2", "steps.patience=1"])
    records = run_to_end(recipe, tmp_path / "run")
    assert {record["reward"] for record in records.values()} == {0.0}
    assert all(record["groups_informative"] for record in records.values())


HINTED = WORLD.replace("Ending, Message, Task", "Ending, Message, Secret, Task").replace(
    "{})", '{}, {"hint": Secret("zanzibar", name="hint", readers=frozenset({"teacher"}))})'
)


def log_likelihoods(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Log-probs of ``ids`` after a prompt by a plain forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[range(len(ids)), list(ids)].tolist()


def taught(tree: Tree, leaf: str, agent: str, secret: str, loaded: Any) -> dict[str, list[float]]:
    """Log-probs of the agent's turns by id, after prompts that Transformers' template writes with the secret."""
    turns = prompts(tree, leaf, agent)
    start = turns[0][0]
    chat = []
    for message in tree.messages(tree.requests[turns[0][1].prompt]):
        text = "".join(part.text for part in message.parts)
        text += tree.turns[message.turn].text if message.turn else ""
        chat.append({"role": message.role, "content": text})
    chat[0]["content"] += f"{HELP}\n{secret}"
    tokenizer = loaded.renderer.tokenizer
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    shown = tokenizer(text, add_special_tokens=False).input_ids
    return {
        # Later prompts go on from the first, which alone has the secret.
        turn.id: log_likelihoods(loaded.model, [*shown, *prompt[len(start) :]], turn.ids)
        for prompt, turn in turns
    }


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("rl/grpo", ["policies.weights=each"]),
        ("rl/ppo", ["critic.view=joint"]),
        ("rl/at_grpo", ["environment.turns=2"]),
    ],
)
def test_a_privileged_teacher_is_the_policy_after_a_prompt_with_the_answer(
    method: str, words: Sequence[str], tmp_path: Path
) -> None:
    words = [*SMALL, *words, "policies.teacher=privileged", "loss.kl_coef=0", "steps.count=1"]
    words += ["rollout.max_tokens=24", "reward.team_weight=0", "steps.epochs=1"]
    words += ["rollout.tasks=1", "rollout.rollouts_per_task=2", "steps.minibatches_per_step=1"]
    recipe = make_recipe(method, words)
    assert ("secrets of the teacher", "answer") in recipe.plan().lines()
    (record,) = run_to_end(recipe, tmp_path / "run").values()
    loaded, stage, agents = load("tiny-exchange"), "reinforce/00000", ("Alice", "Bob")
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        tasks = run.store.tree_tasks(0, stage)
        trees = {task: run.store.tree(0, stage, task) for task in tasks}
        answers = {task: run.store.task(task).secrets["answer"].reveal("grader") for task in tasks}
        s, sampled = recipe.settings, (run.store, 0, stage, tasks, agents)
        reward, shape = PathReward(s.reward), (s.rollout, s.advantage)
        is_tree = s.rollout.tree != "none"
        paths = (
            tree_samples(*sampled, reward, shape).turns if is_tree else paths_of(*sampled, reward)
        )
        renderers = dict.fromkeys(agents, loaded.renderer)
        shown = with_teacher_prompts(paths, run.store, 0, [stage], renderers)
    terms: dict[str, list[float]] = {}
    for path, path_shown in zip(paths, shown, strict=True):
        secret = f"answer: {answers[path.task]}"
        expected = taught(trees[path.task], path.outcome.leaf, path.agent, secret, loaded)
        scored = with_teacher(
            loaded.model, path_shown.teacher_rows, TrainingSettings(), temperature=1
        )
        aligned = with_teacher_of(path, replace(path, rows=tuple(scored)))
        assert [(row.ids, row.targets) for row in aligned.rows] == [
            (row.ids, row.targets) for row in path.rows
        ]
        for row in aligned.rows:
            numbers = [number for target in row.targets for number in expected[target.turn]]
            assert row.teacher == pytest.approx(numbers, abs=1e-4)
            ratios = [after - before for after, before in zip(numbers, row.logprobs, strict=True)]
            role = path.agent if "policies.weights=each" in words else "policy"
            terms.setdefault(role, []).extend(math.exp(ratio) - 1 - ratio for ratio in ratios)
    for role, values in terms.items():
        assert record[f"{role}/teacher_kl"] == pytest.approx(fmean(values), rel=1e-3)


def test_a_policy_learns_from_itself_with_a_secret_that_its_rows_never_have(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(HINTED)
    words = [*SMALL, f"environment={tmp_path / 'world.py'}:World", "policies.teacher=privileged"]
    words += ["rollout.tasks=1", "rollout.rollouts_per_task=32", "rollout.max_tokens=3"]
    words += ["loss.kl_coef=0", "reward.team_weight=0", "steps.count=6", "steps.patience=2"]
    words += ["train.learning_rate=5e-4"]
    recipe = make_recipe("rl/grpo", words)
    records = run_to_end(recipe, tmp_path / "run")
    divergences = [float(record["policy/teacher_kl"]) for record in records.values()]
    assert divergences[0] > 1 and divergences[-1] < divergences[0] / 10
    assert not any(record["groups_informative"] for record in records.values()), "no other signal"
    renderer, _ = load_renderer("tiny-exchange")
    stage, reward = "reinforce/00000", PathReward(recipe.settings.reward)
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        paths = paths_of(run.store, 0, stage, run.store.tree_tasks(0, stage), ["player"], reward)
        shown = with_teacher_prompts(paths, run.store, 0, [stage], {"player": renderer})
    assert shown
    for path in shown:
        assert "zanzibar" not in "".join(renderer.decode(row.ids) for row in path.rows)
        assert all("zanzibar" in renderer.decode(row.ids) for row in path.teacher_rows)
    too_long = [*words, f"train.max_length={max(len(row.ids) for row in paths[0].rows) + 2}"]
    with pytest.raises(UserError, match="longer than the training's maximum"):
        run_to_end(make_recipe("rl/grpo", too_long), tmp_path / "long")


def test_a_privileged_teacher_needs_a_secret_that_it_may_read() -> None:
    environment = make_recipe("rl/grpo", SMALL).environment
    gold = Secret("42", name="gold", readers=frozenset({"grader"}))
    with pytest.raises(UserError, match="exchange has none for the reader `teacher`"):
        teacher_secrets(environment, [Task("a", {}, {"gold": gold}), Task("b", {})])


def test_tasks_are_drawn_by_their_pass_rates_in_earlier_steps(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(WORLD)
    overrides = [
        *SMALL,
        f"environment={tmp_path / 'world.py'}:World",
        "rollout.pass_rates=[0.1, 0.9]",
    ]
    overrides += ["rollout.tasks=2", "steps.count=4", "loss.kl_coef=0", "rollout.max_tokens=8"]
    overrides += ["rollout.rollouts_per_task=6"]
    recipe = make_recipe("rl/grpo", overrides)
    run_to_end(recipe, tmp_path / "run")
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        drawn = [{*run.store.tree_tasks(0, f"reinforce/{step:05d}")} for step in range(4)]
    # Both halves of the set are new first; then only the tasks that are neither always right nor always wrong.
    assert drawn == [{"train-0", "train-1"}, {"train-2", "train-3"}, *[{"train-1", "train-3"}] * 2]


@pytest.mark.parametrize(
    ("team_weight", "final", "acted", "reward"),
    [
        (None, None, False, 0.5),
        (None, None, True, 0.0),
        (None, 2.0, False, 2.0),
        (0.5, 2.0, False, 2.25),
        (0.5, None, True, 0.25),
    ],
)
def test_the_reward_of_an_agent_mixes_the_score_of_the_team_with_its_own(
    team_weight, final, acted, reward
) -> None:
    rewards = {} if final is None else {("leaf", "final_reward:Ann"): final}
    outcome = Outcome("leaf", 0, ANSWERED, None, 0.5)
    assert _whole(outcome, "Ann", acted, rewards, team_weight) == reward


def test_the_plan_counts_the_rollouts_of_trees(tmp_path: Path) -> None:
    """Each later state of a spine adds K - 1 rollouts; a full tree multiplies them by K."""
    overrides = [*SMALL, "steps.count=2", "rollout.tree_depth=3"]
    assert make_recipe("rl/vine", overrides).plan().dialogues == 2 * 2 * (3 + 2 * 2)
    assert (
        make_recipe("rl/vine", [*overrides, "rollout.tree=full"]).plan().dialogues == 2 * 2 * 3**3
    )
    crossed = [*overrides, "rollout.joint=crossed"]
    assert make_recipe("rl/vine", crossed).plan().dialogues == 2 * 2 * (9 + 2 * 8)
    # Alternatives that stop are the turns of K rollouts, and each best one may get a new rest.
    assert make_recipe("rl/at_grpo", overrides).plan().dialogues == 2 * 2 * (3 + 2)
    first = [*overrides, "rollout.continue_with=first"]
    assert make_recipe("rl/at_grpo", first).plan().dialogues == 2 * 2 * 3


def test_the_plan_counts_the_tasks_of_dynamic_sampling() -> None:
    rounds = ("rollout.oversample_tasks=5", "rollout.rounds=3", "steps.count=4")
    plan = make_recipe("rl/dapo", [*SMALL, *rounds]).plan()
    assert (plan.tasks_wanted, plan.dialogues) == (4 * 5, 4 * 3 * 5 * 3)
    # One round draws the tasks of a step.
    alone = make_recipe("rl/grpo", [*SMALL, "rollout.oversample_tasks=5", "steps.count=4"]).plan()
    assert (alone.tasks_wanted, alone.dialogues) == (4 * 2, 4 * 2 * 3)


def test_a_tree_without_a_useful_limit_is_refused_before_the_run() -> None:
    overrides = [
        *SMALL,
        "rollout.tree=full",
        "rollout.tree_depth=99",
        "rollout.rollouts_per_task=8",
    ]
    with pytest.raises(UserError, match="more than 10,000 rollouts of one task") as error:
        make_recipe("rl/vine", overrides).plan()
    assert "rollout.tree_depth" in error.value.todo


@pytest.mark.slow
def test_measures_of_trees_count_in_the_reward(tmp_path: Path) -> None:
    overrides = [*SMALL, "steps.count=1", "reward.measures={well_formed: 0.5, roudns: 1.0}"]
    (record,) = run_to_end(make_recipe("rl/vine", overrides), tmp_path / "run").values()
    assert record["measures_missing"] == 1, "roudns alone"
    assert float(record["reward/measures"]) > 0
    assert record["samples_failed"] == 0


@pytest.mark.slow
def test_trees_branch_at_the_turns_of_the_roles_that_train(tmp_path: Path) -> None:
    overrides = [*SMALL, TWO, "policies.alternate_steps=1", "steps.count=2", "rollout.max_tokens=8"]
    recipe = make_recipe("rl/vine", overrides)
    run_to_end(recipe, tmp_path / "run")
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        for step, agent in enumerate(("Alice", "Bob")):
            stage = f"reinforce/{step:05d}"
            for task, task_rollouts in rollouts(run.store, 0, stage=stage).items():
                tree = run.store.tree(0, stage, task)
                for rollout in (rollout for rollout in task_rollouts if rollout.number):
                    path = tree.path(str(rollout.leaf))
                    turns = [turn.id for turn in path]
                    index = turns.index(rollout.start) + 1 if rollout.start in turns else 0
                    assert path[index].speaker.name == agent


@pytest.mark.slow
def test_a_step_whose_trees_all_fail_ends_the_run(tmp_path: Path) -> None:
    broken = WORLD.replace(
        "        return Transition(",
        "        assert state.task.id[0] != 't'\n        return Transition(",
    )
    (tmp_path / "world.py").write_text(broken)
    overrides = [*SMALL, f"environment={tmp_path / 'world.py'}:World", "rollout.max_tokens=8"]
    with pytest.raises(UserError, match="all 6 rollouts of a step failed; the first with: World"):
        run_to_end(make_recipe("rl/vine", overrides), tmp_path / "run")
