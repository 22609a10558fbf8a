"""Packaged presets have the published values, and all of them can be planned.

Sources: Optima (arXiv 2410.08115), table 8 and the recipes of its repository; SWEET-RL (arXiv 2503.15478), table 5,
section 5.1 and its released commands; MOAT (arXiv 2509.09629), the defaults of its released scripts and the commands
of its README; DensePolicy, its released scripts and the configuration of its training; GAP (arXiv 2510.25320) and AFM
(arXiv 2508.13167), their released scripts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.registry import is_micro_world, task_pair
from coterie.recipes.registry import names, played_by, preset, settings
from coterie.recipes.registry import recipe as recipe_of
from coterie.tools.retrieval import build_index
from tests.helpers.template_models import make_model

SETS = ("hotpot_qa", "2wiki", "trivia_qa", "cbt", "math", "gsm8k", "arc_c", "mmlu")
METHODS = ("optima/isft", "optima/idpo", "optima/isft_dpo")

Table = Mapping[str, Any]
"""By key; a value for each of :data:`SETS`, or one for all."""

EVERYWHERE: Table = {
    "model": "meta-llama/Meta-Llama-3-8B-Instruct", "dataset.name": SETS, "iterations": 6,
    "from_initial": (False, False, False, False, True, True, True, True),
    "evaluate.tasks": (1000, 1000, 1000, 1000, 5000, 1319, 1172, 14042), "evaluate.temperature": 0.0,
    "rollout.temperature": 0.7, "rollout.first_temperature": (0.3, 0.3, 0.3, 0.3, 0.7, 0.7, 0.3, 0.3),
    "rollout.top_p": 1.0, "rollout.max_tokens": 2000, "rollout.format_pool": True,
    "reward.loss_term": "inverse", "reward.leak_penalty": 10, "reward.leaks_lose_task": False,
    "reward.repeats_lose_loss": True, "reward.short_tokens": 0, "reward.min_loss": 0.1,
    "select.min_score": 0,
    "select.top_share": (0.7, 0.7, 0.7, 0.7, 0.8, 0.7, 0.7, 0.7), "select.skip_share": (0, 0, 0, 0, 0.1, 0, 0, 0),
    "train.method": "full", "train.schedule": "cosine", "train.warmup_ratio": 0.1, "train.max_length": 2048,
}  # fmt: skip
ISFT: Table = {
    "reward.lambda_token": (0.6, 0.6, 0.6, 0.6, 0.4, 0.4, 0.5, 0.6),
    "reward.lambda_loss": (1, 1, 1, 1, 0.9, 0.9, 0.6, 0.7),
    "select.threshold": (0.5, 0.5, 0.6, 0.5, 0.6, 0.6, 0.6, 0.6),
    "rollout.tasks": (10000, 10000, 10000, 10000, 7500, 7000, 2000, 10000),
    "rollout.rollouts_per_task": (10, 10, 10, 10, 10, 10, 15, 10),
    "train.learning_rate": (2e-5, 2e-5, 2e-5, 2e-5, 1e-6, 2e-6, 1e-6, 1e-6),
    "train.epochs": (3, 2, 3, 2, 3, 3, 4, 2), "train.batch_size": (32, 32, 32, 32, 16, 16, 16, 16),
}  # fmt: skip
TREES: Table = {
    "dpo.temperature": 0.7, "dpo.probe_dialogues": 100, "dpo.search.searches": 8, "dpo.search.rollouts_per_search": 3,
    "dpo.search.best": 10, "dpo.search.softmax_temperature": 1, "dpo.search.choice_distance": 0.25,
    "dpo.search.merge_distance": 0.1, "dpo.reward.loss_term": "inverse", "dpo.reward.leak_penalty": 0,
    "dpo.reward.leaks_lose_task": True, "dpo.reward.repeats_lose_loss": True, "dpo.reward.short_tokens": 0,
    "dpo.reward.min_loss": 0.1, "dpo.select.rule": "all", "dpo.select.theta_diff": 0.2,
    "dpo.select.top_share": 0.5, "dpo.select.min_score": 0, "dpo.objective.label_smoothing": 0,
    "dpo.objective.reduction": "none", "dpo.train.learning_rate": 5e-7,
    "dpo.train.warmup_ratio": 0.1, "dpo.train.epochs": 1,
    "dpo.train.batch_size": 64, "dpo.train.max_length": 4096,
    "dpo.select.theta_filter": (0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.45, 0.4),
}  # fmt: skip
IDPO: Table = {
    "dpo.tasks": (13000, 12000, 10000, 13000, 7000, 7000, 10000, 10000), "dpo.length_percentile": 85,
    "dpo.reward.lambda_token": (0.6, 0.6, 0.6, 0.6, 0.5, 0.6, 0.4, 0.6),
    "dpo.reward.lambda_loss": (1, 1, 1, 1, 0.7, 0.7, 0.7, 0.7),
    "dpo.objective.beta": (0.1, 0.5, 0.5, 0.1, 0.1, 0.2, 0.2, 0.1), "dpo.objective.nll_coef": 1,
}  # fmt: skip
ISFT_DPO: Table = {
    "rollout.tasks": (10000, 10000, 10000, 10000, 7000, 7000, 10000, 10000), "rollout.rollouts_per_task": 10,
    "train.learning_rate": (2e-5, 2e-5, 2e-5, 2e-5, 1e-6, 1e-6, 1e-6, 1e-6),
    "train.epochs": (2, 1, 1, 1, 4, 3, 4, 2), "train.batch_size": (32, 32, 32, 32, 32, 16, 16, 16),
    "dpo.tasks": (12000, 12000, 12000, 12000, 7000, 7000, 10000, 10000), "dpo.length_percentile": 80,
    "dpo.reward.lambda_token": (0.6, 0.6, 0.6, 0.6, 0.4, 0.4, 0.5, 0.6),
    "dpo.reward.lambda_loss": (1, 1, 1, 1, 0.9, 0.9, 0.6, 0.7),
    "dpo.objective.beta": (0.5, 0.5, 0.7, 0.7, 0.1, 0.5, 0.1, 0.1), "dpo.objective.nll_coef": 0,
}  # fmt: skip
PUBLISHED: Mapping[str, Table] = {
    "optima/isft": {**EVERYWHERE, **ISFT},
    "optima/idpo": {**EVERYWHERE, **ISFT, **TREES, **IDPO},
    "optima/isft_dpo": {**EVERYWHERE, **ISFT, **TREES, **ISFT_DPO},
}


def trainings(shared: Table, **own: Table) -> Table:
    return {
        f"{group}.train.{key}": value
        for group, values in own.items()
        for key, value in {**shared, **values}.items()
    }


COLBENCH: Table = {
    "model": "meta-llama/Llama-3.1-8B-Instruct", "dataset.name": "colbench_code", "method": "sweet",
    "rollout.tasks": 5000, "rollout.rollouts_per_task": 3, "rollout.temperature": 1.0, "rollout.top_p": 1.0,
    "rollout.max_tokens": 1024, "min_reward": 1.0, "critic.kind": "likelihood", "critic.privileged": True,
    "critic.objective.beta": 0.1, "critic.objective.nll_coef": 0.01, "critic.objective.reduction": "turns",
    "critic.objective.label_smoothing": 0, "candidates.share": 0.1, "candidates.count": 16,
    "candidates.temperature": 1.0, "pairs.count": 4, "pairs.top_share": 0.5, "policy.objective.beta": 0.1,
    "policy.objective.nll_coef": 0.01, "policy.objective.reduction": "none", "multi_turn_dpo.objective.beta": 0.1,
    "multi_turn_dpo.objective.nll_coef": 0.01, "evaluate.tasks": 1000, "evaluate.temperature": 1.0,
    "train.betas": (0.9, 0.95), "train.gradient_checkpointing": True, "train.weight_decay": 0,
    "train.max_grad_norm": 1.0, "train.schedule": "cosine",
    **trainings(
        {
            "learning_rate": 2e-7, "epochs": 4, "batch_size": 8, "warmup_ratio": 0.03,
            "max_length": 16384, "tokens_per_microbatch": 16384,
        },
        critic={"max_length": 8192}, policy={"epochs": 1}, rejection_ft={"batch_size": 32}, multi_turn_dpo={},
    ),
}  # fmt: skip
WEBSIGHT: Table = {
    **{key: value for key, value in COLBENCH.items() if key != "min_reward"},
    "dataset.name": "websight", "environment.similarity.kind": "clip", "user_simulator.max_tokens": 4096,
    "rollout.tasks": 1000, "rollout.rollouts_per_task": 6, "min_difference": 0.1, "evaluate.tasks": 500,
    **trainings(
        {"epochs": 8, "max_length": 16384},
        critic={"batch_size": 8}, policy={"epochs": 1}, rejection_ft={"batch_size": 32}, multi_turn_dpo={},
    ),
}  # fmt: skip
"""Table 5, and 6,000 dialogues of 1,000 tasks."""
MOAT: Table = {
    "iterations": 2, "rollout.rollouts_per_task": 15, "rollout.temperature": 1.0, "rollout.top_p": 0.95,
    "rollout.ground_temperature": 0.1, "rollout.max_tokens": 512, "pairs.rule": "best_worst", "pairs.margin": 0.1,
    "align.objective.beta": 0.2, "align.objective.label_smoothing": 0, "align.objective.nll_coef": 0,
    "align.objective.reduction": "none", "correct.candidates": "best", "correct.gold": True,
    "reward.success": 0, "parts": "joint", "train.method": "full", "train.schedule": "cosine",
    "train.weight_decay": 1e-4, "train.gradient_checkpointing": True,
    **trainings(
        {
            "warmup_ratio": 0.05, "epochs": 1, "tokens_per_microbatch": 8192,
        },
        align={"learning_rate": 4e-7, "batch_size": 96, "max_length": 4096},
        improve={"learning_rate": 2e-5, "batch_size": 128, "max_length": 1024},
        start={"learning_rate": 2e-5, "batch_size": 128, "max_length": 1024},
    ),
}  # fmt: skip
"""Of all data sets. Batches: 4 rows, 12 accumulations, 2 GPUs for pairs; 2 rows, 32 accumulations, 2 GPUs for rows."""
MOAT_SIZES = ("model", "rollout.tasks", "start.tasks", "evaluate.tasks", "measure.tasks")
"""Keys whose values may differ between data sets."""
MOAT_SETS: Mapping[tuple[str, str], Table] = {
    ("moat/maths", "gsm8k_plans"): {
        "model": "meta-llama/Llama-2-7b-chat-hf", "rollout.tasks": 7000, "start.tasks": 7000, "evaluate.tasks": 1319,
    },
    ("moat/maths", "gsm8k_socratic"): {
        "model": "meta-llama/Llama-2-7b-chat-hf", "rollout.tasks": 7000, "start.tasks": 7000, "evaluate.tasks": 1319,
    },
    ("moat/maths", "lumos_maths"): {
        "model": "meta-llama/Llama-2-7b-hf", "rollout.tasks": 19000, "start.tasks": 19000, "evaluate.tasks": 1000,
    },
}  # fmt: skip

DENSE: Table = {
    "model": "meta-llama/Meta-Llama-3-8B-Instruct", "iterations": 1,
    "rollout.max_tokens": 1024, "rollout.shard": (0, 1), "search.children": "temperature",
    "search.temperatures": (1.0, 0.5, 0.7), "search.rollouts_per_task": 1000, "pairs.rule": "siblings",
    "pairs.margin": 0.5,
    "pairs.max_visits": 8, "objective.beta": 0.1, "objective.nll_coef": 0, "objective.label_smoothing": 0,
    "objective.reduction": "none", "train.method": "full", "train.learning_rate": 7.2e-8,
    "train.schedule": "cosine", "train.warmup_ratio": 1.0, "train.epochs": 1, "train.batch_size": 32,
    "train.max_length": 4096, "evaluate.temperature": 0.0,
}  # fmt: skip
"""Batches: one row, 4 accumulations, 8 GPUs."""
DENSE_SETS: Mapping[tuple[str, str], Table] = {
    ("dense_tree/gsm8k", "gsm8k"): {
        "environment.name": "python_maths", "environment.steps": 32, "environment.answers": 10,
        "search.max_children": 10,
        "environment.shots": 2,  # 8 there; as many as are written here
        "environment.feedback": "oracle", "search.rollouts_per_search": 16, "search.pairs": 256, "budget.tasks": 347,
        "rollout.tasks": 347, "evaluate.tasks": 1319,
    },
    ("dense_tree/math", "math"): {
        "environment.name": "python_maths", "environment.steps": 8, "environment.answers": 10,
        "search.max_children": 10,
        "environment.shots": 1,
        "environment.feedback": "oracle", "search.rollouts_per_search": 8, "search.pairs": 512, "budget.tasks": 347,
        "budget.pairs": 22331, "rollout.tasks": 2334, "evaluate.tasks": 5000,
    },
    ("dense_tree/babyai", "babyai"): {
        "environment.steps": 30, "search.max_children": 8, "search.rollouts_per_search": 15, "search.pairs": 256,
        "budget.tasks": 19,
        "budget.pairs": 908, "rollout.tasks": 40, "evaluate.tasks": 500,
    },
    ("dense_tree/alfworld", "alfworld"): {
        "environment.steps": 30, "environment.types": ("put", "cool"), "search.max_children": 8,
        "search.rollouts_per_search": 8,
        "search.pairs": 512, "budget.tasks": 24 + 20, "budget.pairs": 1170 + 665, "rollout.tasks": 24 + 21,
        "evaluate.tasks": 134,
    },
}  # fmt: skip


GAP: Table = {
    "model": "Qwen/Qwen2.5-3B-Instruct", "method": "sft_rl", "environment.name": "mhqa", "environment.plans": "tasks",
    "environment.score": "em", "tools.use": ("wiki_search",), "tools.calls": "inline", "tools.rounds": 7,
    "traces.source": "expert", "traces.form": "parallel", "traces.tasks": 7000, "traces.min_calls": 3,
    "rollout.max_tokens": 1024, "train.method": "full", "train.learning_rate": 1e-5, "train.schedule": "cosine",
    "train.warmup_ratio": 0.03, "train.epochs": 4, "train.batch_size": 32, "train.max_length": 5120,
    "evaluate.temperature": 0.0,
}  # fmt: skip
"""8 turns: 7 with calls, and the answer. Batches: one row, 16 accumulations, 2 GPUs."""
GAP_SETS = {"hotpot_qa": 7405, "2wiki": 12576, "musique": 2417}
GAP_WEB: Table = {
    "model": "Qwen/Qwen2.5-32B-Instruct", "environment.name": "web", "tools.use": ("web_search", "crawl_page"),
    "method": "sft_rl", "tools.rounds": 24, "traces.tasks": 7607, "traces.min_calls": 5, "train.learning_rate": 1.4e-5,
    "train.schedule": "cosine", "train.warmup_ratio": 0.1, "train.epochs": 4, "train.batch_size": 256,
    "train.max_length": 32768, "train.tokens_per_microbatch": 32768, "rollout.max_tokens": 4096,
}  # fmt: skip
"""AFM's web agent: 25 turns; one row, 16 accumulations, 2 x 8 GPUs."""
SCRIPTS: Table = {
    "rollout.temperature": 1, "advantage.baseline": "mean_std", "steps.epochs": 1,
    "loss.clip_low": 0.2, "loss.aggregation": "token", "loss.entropy_coef": 0, "train.learning_rate": 1e-6,
    "train.schedule": "constant",
}  # fmt: skip
"""What all scripts of GAP's and AFM's reinforcement learning have."""
DYNAMIC: Table = {
    **SCRIPTS, "rollout.rollouts_per_task": 8, "steps.minibatches_per_step": 1, "loss.clip_high": 0.28,
    "loss.dual_clip": 10,
    "loss.kl_coef": 0, "train.weight_decay": 0.1,
}  # fmt: skip
GAP_RL: Table = {
    **DYNAMIC, "rollout.tasks": 32, "rollout.oversample_tasks": 64, "steps.count": 200, "train.warmup_ratio": 3 / 200,
    "train.max_length": 2048 + 8192,
}  # fmt: skip
WEB_RL: Table = {
    **DYNAMIC, "rollout.tasks": 64, "rollout.oversample_tasks": 128, "steps.count": 60, "train.warmup_ratio": 3 / 60,
    "train.max_length": 2048 + 30720,
}  # fmt: skip
CODE_RL: Table = {
    **DYNAMIC, "rollout.tasks": 256, "rollout.oversample_tasks": 256, "steps.count": 2000,
    "steps.minibatches_per_step": 8,
    "loss.dual_clip": 3, "train.warmup_ratio": 10 / 2000, "train.weight_decay": 0.01,
    "train.max_length": 4096 + 16384,
}  # fmt: skip
GRPO: Table = {
    **SCRIPTS, "rollout.rollouts_per_task": 8, "rollout.tasks": 64, "rollout.rounds": 1, "steps.count": 60,
    "steps.minibatches_per_step": 1,
    "loss.clip_high": 0.2, "loss.dual_clip": 3, "loss.kl_coef": 0.001, "loss.kl_estimator": "k3_forward",
    "train.warmup_ratio": 0.285, "train.weight_decay": 0.01,
}  # fmt: skip
PPO: Table = {
    **SCRIPTS, "advantage.baseline": "values", "advantage.gamma": 1, "advantage.gae_lambda": 1,
    "rollout.rollouts_per_task": 1,
    "rollout.tasks": 512, "rollout.rounds": 1, "steps.count": 1005, "steps.minibatches_per_step": 2,
    "loss.clip_high": 0.2,
    "loss.dual_clip": 3, "loss.kl_coef": 0.001, "loss.kl_estimator": "k3_forward", "train.warmup_ratio": 0.285,
    "train.weight_decay": 0.01, "critic.train.learning_rate": 1e-5, "critic.train.warmup_ratio": 0.05,
    "critic.loss.clip": 0.5,
}  # fmt: skip
"""Mini-batches of 256 tasks of 512."""

GAP_CODE: Table = {
    "model": "Qwen/Qwen2.5-Coder-7B-Instruct", "method": "sft", "environment.name": "code", "tools.use": ("code",),
    "tools.calls": "inline", "tools.rounds": 7, "tools.max_characters": 1536, "traces.tasks": 59929,
    "traces.min_calls": 5, "train.method": "full", "train.learning_rate": 3e-5, "train.schedule": "cosine",
    "train.warmup_ratio": 0.1, "train.epochs": 2, "train.batch_size": 32, "train.max_length": 32768,
    "train.tokens_per_microbatch": 32768, "rollout.max_tokens": 16384, "evaluate.temperature": 0.6,
    "evaluate.tasks": 1000, "environment.limits.seconds": 6.0, "environment.limits.total_seconds": 300.0,
}  # fmt: skip
"""AFM's code agent, 7B: 8 turns in training; one row, 4 accumulations, 8 GPUs; 512 tokens of a result are 1536
characters."""


def reinforced(table: Table, max_tokens: int) -> Table:
    """Return a table of reinforcement learning for GAP, with our limit of rounds and micro-batches of one long row."""
    phase = {f"rl.{key}": n for key, n in table.items() if key.startswith("train.")}
    return {
        **{key: n for key, n in table.items() if not key.startswith("train.")},
        **phase,
        "rollout.max_tokens": max_tokens,
        "rollout.rounds": 8,
        "rl.train.tokens_per_microbatch": table["train.max_length"],
    }


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested values by their whole keys."""
    table: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        table |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return table


def column(table: Table, n: int) -> Table:
    """Return the values of one of :data:`SETS`."""
    return {
        key: value[n] if isinstance(value, tuple) and len(value) == len(SETS) else value
        for key, value in table.items()
    }


def data_sets(method: str) -> list[str]:
    return [name for name in played_by(method) if not is_micro_world(name)]


MATHS = {key: value for key, value in GAP_CODE.items() if not key.startswith("environment.")}
CASES: dict[tuple[str, str], Table] = {
    **{(method, name): column(table, n)
       for method, table in PUBLISHED.items() for n, name in enumerate(SETS)},
    ("sweet_rl/backend", "colbench_code"): COLBENCH, ("sweet_rl/frontend", "websight"): WEBSIGHT,
    **{(method, name): {**MOAT, **MOAT_SETS.get((method, name), {})}
       for method in names() if method.startswith("moat/") for name in data_sets(method)},
    **{case: {**DENSE, **table} for case, table in DENSE_SETS.items()},
    ("dense_tree/textworld", "textworld"): {**DENSE, **DENSE_SETS["dense_tree/babyai", "babyai"]},
    **{("gap/mhqa", name): {**GAP, **reinforced(GAP_RL, 1024), "evaluate.tasks": tasks}
       for name, tasks in GAP_SETS.items()},
    ("gap/web", "qa"): {**GAP_WEB, **reinforced(WEB_RL, 4096)},
    ("gap/all_tools", "qa"): {
        **GAP_WEB, **reinforced(WEB_RL, 4096), "environment.name": "all_tools",
        "tools.use": ("web_search", "crawl_page", "code", "visual_inspector"),
    },
    **{("gap/code", name): {**GAP_CODE, **reinforced(CODE_RL, 16384)}
       for name in ("livecodebench", "code_contests", "codeforces", "humaneval")},
    **{("gap/code", name): {**MATHS, "environment.name": "code_maths"}
       for name in ("math500", "aime24", "aime25", "amc23", "olympiadbench")},
    ("rl/grpo", "gsm8k"): GRPO, ("rl/dapo", "gsm8k"): GAP_RL, ("rl/ppo", "gsm8k"): PPO,
}  # fmt: skip


@pytest.mark.parametrize(("method", "name"), CASES)
def test_presets_have_the_published_values(method: str, name: str) -> None:
    table, values = CASES[method, name], flat(settings(method, [task_pair(name)]).model_dump())
    assert {key: values[key] for key in table} == dict(table)
    if method.startswith("rl/") or values["environment.name"] == "code_maths":
        return
    own = {key for key in flat(preset(method, name)) if key not in table}
    own -= {"engine.reasoning_parser"}  # GAP's format has <think> of its own
    if method.startswith("moat/"):
        own = {key for key in own - {*MOAT_SIZES} if not key.startswith("environment.")}
    assert not own, "values that nobody published"


def test_methods_have_presets_of_these_data_sets() -> None:
    for method in METHODS:
        assert played_by(method) == ["exchange", *sorted(SETS)]
    assert played_by("sweet_rl/backend") == ["persona", "colbench_code"]
    assert played_by("sweet_rl/frontend") == ["pages", "websight"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose context fits the published settings."""
    made = make_model("chatml", context=16384)
    folder = tmp_path_factory.mktemp("large") / "model"
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


PLANNED = [
    ("optima/isft", "gsm8k"),
    *(("optima/isft_dpo", name) for name in SETS),
    *((method, name) for method in names() if method.startswith("moat/")
      for name in data_sets(method) if "lumos" not in name),
    *(case for case in DENSE_SETS if case[1] != "alfworld"),  # needs its package
    ("gap/mhqa", "musique"), ("rl/ppo", "gsm8k"),
]  # fmt: skip
FIRST = {method.partition("/")[0]: (method, name) for method, name in reversed(PLANNED)}
"""A data set of each recipe; the others are planned by ``make test-long``."""


@pytest.mark.parametrize(
    ("method", "name"),
    [
        pytest.param(*case, marks=() if case in FIRST.values() else pytest.mark.slow)
        for case in PLANNED
    ],
)
def test_presets_can_be_planned_on_packaged_rows(
    method: str, name: str, large: Path, tmp_path: Path
) -> None:
    overrides = [task_pair(name), f"model={large}"]
    overrides += [] if is_micro_world(name) else ["dataset.source=sample"]
    pages = tmp_path / "pages.jsonl"
    pages.write_text('{"title": "Oslo", "text": "Oslo is the capital of Norway."}\n')
    if method == "moat/complex_qa":
        pytest.importorskip("bm25s")
        build_index(pages, tmp_path / "index")
        overrides.append(f"environment.corpus={tmp_path / 'index'}")
    elif method == "gap/mhqa":
        tools = tmp_path / "tools.yaml"
        tools.write_text(f"tools: [{{name: wiki_search, corpus: {pages}}}]")
        overrides.append(f"tools.config={tools}")
    plan = recipe_of(settings(method, overrides)).plan()
    assert plan.dialogues > 0 and plan.longest_prompt > 50
    if method == "optima/isft":
        assert ("training tasks", "52 of 7,000 requested") in plan.lines()


def test_presets_of_micro_worlds() -> None:
    for method in ("rl/grpo", "rl/dapo", "rl/ppo"):
        for world in ("exchange", "persona"):
            own = settings(method, [f"environment={world}"])
            assert own.model == f"tiny-{world}" and own.evaluate.tasks == 500
        recipe_of(settings(method, ["environment=exchange"])).plan()
