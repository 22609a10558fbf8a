"""What is changed in the commands of the pages so that each takes seconds, and what is not run, and why.

A command that no rule fits, and a rule that fits no command, fail the check.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.docs_check.pages import Command


@dataclass(frozen=True)
class Rule:
    """Changes of the commands that begin with some words."""

    begins: str
    more: str = ""
    """Words that replace those of the same key or option (``--x=1``), or are added."""
    has: str = ""
    """Further text of the command."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Other words for words, or for ends of words after ``=``."""
    lines: str = ""
    """Standard input."""
    stop: bool = False
    """End it by Ctrl-C once it has printed something."""

    def fits(self, command: Command) -> bool:
        return f"{command.text} ".startswith(f"{self.begins} ") and self.has in command.text


ROWS = "rows=8 evaluate.tasks=2 evaluate.rows=2 evaluate.max_tokens=4 engine.device=cpu"
FILE = f"{ROWS} model=tiny-exchange"
EVALUATED = "evaluate.tasks=2 engine.device=cpu"
SAMPLED = f"rollout.tasks=2 rollout.rollouts_per_task=2 rollout.max_tokens=96 {EVALUATED}"
TRAINED = "train.epochs=1 select.threshold=-100 select.top_share=1"
SMALL = f"iterations=1 {SAMPLED} {TRAINED}"
TREES = (
    f"iterations=2 {SAMPLED} {TRAINED} dpo.tasks=2 dpo.probe_dialogues=2 dpo.search.searches=2 "
    "dpo.search.rollouts_per_search=2 dpo.train.epochs=1 dpo.select.theta_filter=-100 dpo.select.theta_diff=0"
)
SWEET = (
    f"rollout.tasks=16 rollout.rollouts_per_task=3 rollout.max_tokens=96 {EVALUATED} candidates.share=0.1 "
    "candidates.count=4 "
    "critic.train.epochs=1 train.max_steps=2 policy.train.batch_size=16"
)
MOAT = (
    f"model=tiny-exchange dataset=gsm8k_plans dataset.source=sample iterations=1 parts=sft {EVALUATED} rollout.tasks=2 "
    "rollout.max_tokens=16 start.tasks=2 measure.tasks=1 measure.rollouts_per_task=1 start.train.max_length=1024 "
    "improve.train.max_length=1024"
)
TRACES = (
    "train.max_steps=1 train.batch_size=2 traces.tasks=4 rollout.max_tokens=16 train.max_length=4096 "
    "train.tokens_per_microbatch=4096"
)
BRIEF_TURNS = f"rollout.max_tokens=8 environment.turns=2 user_simulator.max_tokens=4 {EVALUATED}"
STEPS = (
    "candidates.count=2 train.max_steps=1 critic.train.batch_size=2 critic.train.max_length=4096 "
    "policy.train.batch_size=2 policy.train.max_length=4096"
)
BRIEF = f"rollout.tasks=2 rollout.rollouts_per_task=2 {BRIEF_TURNS} {STEPS}"
TINY_RL = f"{EVALUATED} traces.tasks=16 train.epochs=1 steps.count=1 rollout.tasks=4 rollout.rollouts_per_task=2"
FEW = "tasks=2 max_tokens=16"
REINFORCED = (
    "rollout.tasks=2 rollout.rollouts_per_task=2 rollout.rounds=1 rollout.max_tokens=96 steps.count=1 "
    f"loss.entropy_coef=0.01 {EVALUATED}"
)
"""With a bonus for entropy there is always something to learn."""
TWO_STEPS = (
    "rollout.tasks=2 rollout.oversample_tasks=2 rollout.rounds=1 rollout.rollouts_per_task=2 "
    "loss.entropy_coef=0.01 rl.train.max_length=4096 rl.train.tokens_per_microbatch=4096"
)
ON_ROWS = (
    "dataset=2wiki dataset.source=sample environment=mhqa environment.prompt=closed tools=[] model=tiny-exchange "
    f"train.max_length=1024 {REINFORCED}"
)

NAMES = {
    "MODEL": "smollm2", "RUN": "runs/mine", "NAME": "tiny-exchange", "MERGED": "merged",
    "ADAPTER": "runs/lora/training/policy/iteration-00/final",
}  # fmt: skip
"""What stands in the pages for something of the user's."""

KEYS = {"run": "config"}
"""Of commands that need what is not here, only the settings are read: vLLM (``make test-vllm`` runs it) and several
GPUs (``make test-ranks`` trains on CPU ranks). wandb is not installed; tensorboard stands in for it."""

SAMPLE = {"data": "sample"}
RECORD = {"runs/recorded": "runs/agent"}
STEP = {"runs/rl@50": "runs/rl@1"}

RULES = (
    Rule("coterie run sft", ROWS, has="runs/recorded", instead=RECORD),
    Rule("coterie run dpo", f"{ROWS} dataset.heldout=0", has="runs/recorded", instead=RECORD),
    Rule("coterie run sft", FILE),
    Rule("coterie run dpo", FILE),
    Rule("coterie list"),
    Rule("coterie run optima/isft", has="engine.kind=vllm", instead=KEYS),
    Rule("coterie run optima/isft", has="train.processes=", instead=KEYS),
    Rule("coterie run optima/isft", has="train.launch=", instead=KEYS),
    Rule("coterie run optima/isft", SMALL, has="tracker=", instead={"wandb": "tensorboard"}),
    Rule("coterie run optima/isft", f"{SMALL} train.max_length=1024 model=tiny-exchange", has="questions.jsonl"),
    Rule("coterie run optima/isft", f"{SMALL} train.max_length=2048", has="dataset="),
    Rule("coterie run optima/isft", f"{SMALL} train.max_length=512", has="environment="),
    Rule("coterie run optima/isft", SMALL),
    Rule("coterie run --config", SMALL),
    Rule("coterie run optima/idpo", TREES),
    Rule("coterie run sweet_rl/backend", BRIEF, has="offline="),
    Rule("coterie run sweet_rl/backend", BRIEF, has="critic.kind=classifier"),
    Rule("coterie run sweet_rl/backend", f"{BRIEF} --dry-run", has="model=smollm2"),
    Rule("coterie run sweet_rl/backend", SWEET),
    Rule("coterie run sweet_rl/frontend", f"{BRIEF} --dry-run", has="model=smollm2"),
    Rule("coterie run sweet_rl/frontend", SWEET),
    Rule("coterie run moat/maths", "--dry-run"),
    Rule("coterie run dense_tree/gsm8k", "--dry-run"),
    Rule("coterie run dense_tree/tiny", "--dry-run"),
    Rule("coterie run rl/grpo", has="engine.kind=vllm", instead=KEYS),
    Rule("coterie run rl/grpo", f"{REINFORCED} model=tiny-exchange", has="dataset=questions.jsonl"),
    Rule("coterie run rl/grpo", f"{REINFORCED} rollout.tasks=8", has="environment.agent="),
    Rule("coterie run rl/grpo", f"{REINFORCED} steps.count=2", has="--fork", instead={"50": "1"}),
    Rule("coterie run rl/grpo", REINFORCED, has="runs/rl@50", instead=STEP),
    Rule("coterie run rl/grpo", REINFORCED),
    Rule("coterie run rl/ppo", REINFORCED),
    *(Rule(f"coterie run rl/{name}", REINFORCED) for name in ("turns", "gigpo", "vine", "at_grpo", "magrpo", "rae")),
    Rule("coterie run rl/dapo", REINFORCED),
    Rule("coterie run gap/tiny", TINY_RL, has="method=sft_rl"),
    Rule("coterie run gap/tiny", f"{EVALUATED} traces.tasks=16 train.epochs=1"),
    Rule("coterie reproduce multi_agent", "evaluate.tasks=8", has="--gate"),
    Rule("coterie reproduce multi_agent", "evaluate.tasks=8 steps.count=2 rollout.tasks=2", has="--quick"),
    Rule("coterie reproduce multi_agent", has="--from"),
    Rule("coterie reproduce gap-sft", "traces.tasks=16 evaluate.tasks=40"),
    Rule("coterie reproduce gap", f"{TINY_RL} evaluate.tasks=40 --gate"),
    Rule("coterie run gap/code", f"{EVALUATED} {TRACES}"),
    Rule("coterie run gap/mhqa", f"{EVALUATED} {TRACES} train.target_tokens=8", has="form=closed"),
    Rule("coterie run gap/mhqa", f"{EVALUATED} {TRACES} {TWO_STEPS}", has="steps.count=2", instead=SAMPLE),
    Rule("coterie run gap/mhqa", f"{EVALUATED} {TRACES}", has="dataset.source=data ", instead=SAMPLE),
    Rule("coterie run gap/mhqa", f"{EVALUATED} {TRACES}"),
    Rule("coterie sweep dense_tree/tiny", "--dry-run"),
    Rule("coterie sweep moat/maths", "model=smollm2 dataset.source=sample --dry-run"),
    Rule("coterie sweep optima/isft", SMALL, instead={"0,0.3,0.6": "0,0.6"}),
    Rule("coterie run examples/recipe.py:BestOfN", f"tasks=2 {EVALUATED}"),
    Rule("coterie evaluate runs/rl", FEW, instead={"50,100": "1"}),
    Rule("coterie evaluate", FEW, has="runs/rl@50", instead=STEP),
    Rule("coterie evaluate mhqa", FEW, has="dataset.source=data ", instead=SAMPLE),
    Rule("coterie evaluate", f"{FEW} samples=3", has="samples="),
    Rule("coterie evaluate", f"{FEW} best_of=2", has="best_of="),
    Rule("coterie evaluate", FEW),
    Rule("coterie stage", instead={"NAME": "select"}),
    Rule("coterie report"),
    Rule("coterie view", has="--export"),
    Rule("coterie view", has="--text"),
    Rule("coterie view", "--no-open", stop=True),
    Rule("coterie doctor"),
    Rule("coterie config"),
    Rule("coterie chat", "--max-tokens=8", lines="hello\n"),
    Rule("coterie serve model", "--port=0", stop=True, instead=STEP),
    Rule("coterie gateway", stop=True),
    Rule("coterie serve tools", "--port=0", stop=True),
    Rule("coterie export model", has="--merge", instead={"RUN": "runs/lora"}),
    Rule("coterie export model", has="--step", instead={"50": "1"}),
    Rule("coterie export"),
    Rule("coterie models"),
    Rule("coterie data filter", "--least=0 --most=1", has="--from"),
    Rule("coterie data filter", "tasks=2 samples=2 max_tokens=8 --least=0 --most=1"),
    Rule("coterie data"),
    Rule(".venv/bin/python bench/prompts.py", "--tasks=1 --max-tokens=4 --seconds=20"),
    Rule("python examples/problems.py"),
    Rule("python examples/calculator.py"),
    Rule("curl"),
    Rule("make quickstart", SMALL),
)  # fmt: skip
"""The first that fits counts."""

LEFT_OUT = {
    "make test": "CI runs it",
    "make lint": "CI runs it",
    "make docs": "CI runs it",
    "make golden": "runs all methods twice, in minutes",
    "python examples/solutions.py": "needs rows of GSM8K; tests/project/test_examples.py runs it on others",
    "python examples/m3tooleval.py": "needs a copy of M3ToolEval's code",
    "coterie run dense_tree/gsm8k dataset=qa": "goes on from what examples/solutions.py made",
    "python3 -m venv .venv": "CI installs the package",
    "python3 -m venv vllm-env": "downloads vLLM; make test-vllm installs and runs its CPU build",
    "pip install coterie[ray]": "make test-cluster installs Ray",
    "pip install coterie[qlora]": "CI installs the package with its packages for development",
    "pip install -e .[frontend]": "CI installs the package with its packages for development",
    "coterie run rl/grpo cluster=ray": "make test-cluster runs on Ray",
    "coterie run rl/grpo cluster=slurm": "make test-cluster submits to Slurm",
    "SBATCH_PARTITION=gpu": "make test-cluster submits to Slurm",
    "coterie evaluate textworld": "needs TextWorld; make test-textworld plays its games",
    "coterie evaluate agentgym": "needs a server of AgentGym; test_agentgym.py plays on stand-ins",
    "coterie run dense_tree/agentgym": "needs a server of AgentGym; test_agentgym.py runs it on a stand-in",
    "coterie evaluate alfworld": "needs ALFWorld and its games; make test-alfworld evaluates games of it",
    "coterie run sft games.jsonl": "needs the games of ALFWorld that the page demonstrates before",
    "coterie run dense_tree/alfworld": "needs ALFWorld and its games; make test-alfworld grows a tree",
    "coterie run dense_tree/textworld": "needs TextWorld; make test-textworld grows a tree",
    "coterie run dense_tree/tiny environment=textworld": "needs TextWorld; make test-textworld runs it on few games",
    "coterie evaluate reasoning_gym": "needs reasoning-gym; make test-bridges plays its tasks",
    "coterie run rl/grpo environment=reasoning_gym": "needs reasoning-gym; make test-bridges plays its tasks",
    "coterie evaluate openenv": "needs a server; make test-bridges plays on one",
    "coterie evaluate verifiers": "needs a taskset; make test-bridges writes one",
    "coterie evaluate nemo_gym": "needs a server; make test-bridges plays on several",
    "vllm serve MODEL --served-model-name vision": "needs vLLM and a vision model",
    "coterie evaluate pages policy=tiny-pages tasks=2": "needs that server",
    "VLLM_SERVER_DEV_MODE=1 vllm serve": "needs vLLM; make test-vllm starts servers so",
}
"""Beginnings of commands that are not run, and the reasons."""


def small(rule: Rule, command: Command) -> list[str]:
    """Return the words of a command, made small."""
    words = [_named(word, {**NAMES, **rule.instead}) for word in command.words]
    if command.words[0] == "make":
        words = ["coterie", *words[1:]]
    for more in rule.more.split():
        words = _with(words, more)
    return words


def _named(word: str, names: Mapping[str, str]) -> str:
    head, _, value = word.rpartition("=")
    value = names.get(value, value)
    return f"{head}={value}" if head else value


def _with(words: list[str], more: str) -> list[str]:
    key, equals, value = more.partition("=")
    if not key.startswith("--"):
        return [word for word in words if word.partition("=")[0] != key] + [more]
    if key in words:
        place = words.index(key)
        words = words[:place] + words[place + (2 if equals else 1) :]
    return [*words, key, *([value] if equals else [])]
