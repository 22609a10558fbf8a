"""Plan of a run before it starts: its size, and checks of settings that cannot work."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.clusters import UNDER_TORCHRUN, Needs, open_cluster
from coterie.engines.settings import device_name
from coterie.environments.protocol import (
    AnswersRequests,
    Environment,
    draw_tasks,
    formats_of,
    innermost,
    most_turns,
    persons_of,
)
from coterie.environments.user_simulator import check_user, readable_secrets
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import (
    check_bitsandbytes,
    check_context,
    checked_skeleton,
    device_memory,
    load_renderer,
    skeleton,
)
from coterie.recipes.settings import GPU_MEMORY, RecipeSettings
from coterie.record.tree import Task
from coterie.rollout.episodes import first_prompts
from coterie.runs.loop import EVALUATION, Role, check_roles, check_stages
from coterie.training.distributed import accelerate_config, check_launch, launches
from coterie.training.memory import (
    LIBRARIES,
    MemoryPlan,
    ModelShape,
    TrainedModel,
    cache_memory,
    training_memory,
)
from coterie.training.settings import (
    Reads,
    TrainingSettings,
    check_tracker,
    keeps_bases,
    loads_in_4bit,
    shared_group,
    weight_dtype,
)

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.tools.sandbox.worker import SandboxSettings

S = TypeVar("S", bound=RecipeSettings)
RENDERED = 64
"""Number of tasks with the longest texts that are rendered to find the longest prompt."""
CRITIC_TRAINING = "critic.train"
"""Settings key of a critic's training. Servers never sample from a critic, and it may have a value head."""
MARKS = 8
"""Maximum number of tokens that the template adds to a message."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of a run. Counts are upper bounds, with every dialogue and message at its limit."""

    stages: tuple[str, ...]
    tasks: int
    """Number of training tasks of an iteration."""
    tasks_wanted: int
    heldout: int
    heldout_wanted: int
    shapes: Mapping[str, ModelShape]
    """Shape of each role's model."""
    critics: frozenset[str]
    """Roles with a value head, which are never sampled from."""
    memory: tuple[MemoryPlan, ...]
    """Memory of sampling and of each training."""
    device: str
    available: int
    """Bytes of the device's memory."""
    longest_prompt: int
    """Tokens of the longest first prompt of a task."""
    shortest_prompt: int
    """Tokens of the first prompt of a training task."""
    context: int
    """Context length of the role with the shortest context."""
    dialogues: int
    """Training dialogues of all iterations; 0 if unknown."""
    evaluations: int
    """Held-out dialogues of all policies, including the base model."""
    turns: int | None
    max_tokens: int
    rows: int = 0
    """Training rows or pairs of a file."""
    details: tuple[tuple[str, str], ...] = ()
    """Further lines about the recipe's own data."""

    @property
    def generations(self) -> int:
        return (self.dialogues + self.evaluations) * (self.turns or 1)

    @property
    def weights(self) -> dict[str, int]:
        """Number of weights of each role's model."""
        return {role: shape.weights for role, shape in self.shapes.items()}

    def lines(self) -> list[tuple[str, str]]:
        longest = max_dialogue_tokens(self.longest_prompt, self.turns or 1, self.max_tokens)
        cut = " (long dialogues exceed the context and are cut)" * (longest > self.context)
        count, tokens = self.generations, self.generations * self.max_tokens
        lines = [
            ("stages", f"{len(self.stages)}: {', '.join(dict.fromkeys(self.stages))}"),
            ("training tasks", f"{self.tasks:,} of {self.tasks_wanted:,} requested"),
            ("training rows", f"{self.rows:,}"),
            *self.details,
            ("held-out tasks", f"{self.heldout:,} of {self.heldout_wanted:,} requested"),
            *((f"role {role}", f"{count:,} weights") for role, count in self.weights.items()),
            *(memory.line(self.available, self.device) for memory in self.memory),
            ("longest first prompt", f"{self.longest_prompt} tokens{cut}"),
            ("training dialogues", f"at most {self.dialogues:,}"),
            ("held-out dialogues", f"{self.evaluations:,}"),
            ("generations", f"at most {count:,}, with {tokens:,} tokens"),
        ]
        # Lines that do not apply to the recipe are left out.
        conditions = {
            "training tasks": self.tasks_wanted,
            "training rows": self.rows,
            "training dialogues": self.dialogues,
            "generations": self.dialogues and self.turns,
        }
        return [line for line in lines if conditions.get(line[0], True)]


def max_dialogue_tokens(prompt: int, turns: int, max_tokens: int) -> int:
    """Return the tokens of a dialogue whose turns all have the maximum length."""
    return prompt + turns * (max_tokens + MARKS)


def make_plan(recipe: "Recipe") -> Plan:
    """Check the settings against environment, models and machine, and compute the size of the run.

    Raises ``UserError`` for stages out of order, missing services, tasks in both splits, prompts or rows that exceed
    the context, and too little memory.
    """
    s, environment = planned(recipe.settings), recipe.environment
    roles, stages = recipe.roles(), recipe.stages()
    check_stages(s.recipe, stages)
    check_roles(roles)
    trainings = recipe.trainings()
    head = any(role.head for role in roles)
    served = sum(not role.head for role in roles)
    _check_services(s, environment, trainings, policies=served, reach=recipe.reach_cluster)
    count = recipe.training_tasks()
    train = draw_tasks(environment, "train", count, s.seed) if count else []
    heldout = []
    if recipe.holds_out:
        heldout = draw_tasks(environment, "heldout", s.evaluate.tasks, s.seed)
    # Without any tasks of its own, a recipe still gets prompts to check the context with.
    tasks = train + heldout or draw_tasks(environment, "train", RENDERED, s.seed)
    check_user(environment, s.user_simulator, tasks)
    _check_disjoint(environment, map(recipe.whole_task, train), map(recipe.whole_task, heldout))
    longest, shortest, contexts, shapes = 0, [], [], {}
    for role in roles:
        # Each role has its own template, with which the same prompt has another length.
        renderer, context = load_renderer(role.model, s.engine.template)
        prompt = _first_prompt(environment, renderer, tasks, longest=True)
        check_context(context, prompt + recipe.context_reserve(renderer, train), role.model)
        shortest.append(_first_prompt(environment, renderer, train or tasks, longest=False))
        for name, training in trainings.items():
            if training.max_length > context:
                problem = f"{name}.max_length={training.max_length} is more than the model's"
                fix = f"use {name}.max_length={context} or less"
                raise UserError(f"{problem} context of {context} tokens", fix)
            check_room(name, training, context, shortest[-1])
            check_training(shared_group(s, name), training, s, role.model)
        # Raises an error if the model does not support this kind of attention.
        if s.engine.attention:
            skeleton(role.model, s.engine.attention)
        longest = max(longest, prompt)
        empty = checked_skeleton(role.model)
        shapes[role.name] = ModelShape.of(empty, load_in_4bit=loads_in_4bit(s))
        contexts.append(context)
    turns: int | None = None
    # An environment may have no limit of turns.
    with suppress(UserError):
        turns = most_turns(environment)
    # The cache must hold the dialogues of an evaluation and of the training.
    dialogues = max(len(heldout), recipe.dialogues())
    length = min(contexts) if turns is None else max_dialogue_tokens(longest, turns, s.turn_tokens)
    memory = []
    if s.engine.kind == "inprocess":  # vLLM servers have devices or shares of their own
        policies = [(role, shapes[role.name]) for role in roles if not role.head]
        memory.append(_sampling_memory(s, policies, dialogues, min(length, *contexts)))
    row, rows, items = recipe.longest_rows()
    for name, training in trainings.items():
        reads: Reads = "differences" if head and name == CRITIC_TRAINING else "logprobs"
        # The key does not say which role is trained, so the largest model is an upper bound.
        shape = max(shapes.values(), key=lambda shape: shape.weights)
        attention = s.engine.attention or "sdpa"
        model = TrainedModel(shape, training, row, rows, items, reads, attention)
        memory.append(_training_memory(s, name, model))
    device = s.engine.device_name
    available = GPU_MEMORY[s.gpu] if s.gpu else device_memory(device)[1]
    for stage_memory in memory:
        stage_memory.check(available, device, s.model)
    return Plan(
        stages=tuple(stage.key.stage for stage in stages),
        tasks=len(train),
        tasks_wanted=count,
        heldout=len(heldout),
        heldout_wanted=s.evaluate.tasks,
        shapes=shapes,
        critics=frozenset(role.name for role in roles if role.head),
        memory=tuple(memory),
        device=device,
        available=available,
        longest_prompt=longest,
        shortest_prompt=max(shortest),
        context=min(contexts),
        dialogues=recipe.dialogues(),
        evaluations=len(heldout) * sum(stage.key.stage == EVALUATION for stage in stages),
        turns=turns,
        max_tokens=s.turn_tokens,
        details=notes_of(environment),
    )


def notes_of(environment: Any) -> tuple[tuple[str, str], ...]:
    """Return notes about the rows of an environment, or else of its data set."""
    environment = innermost(environment)
    rows = getattr(environment, "dataset", None) or getattr(environment, "rows", None)
    return tuple(getattr(environment, "notes", getattr(rows, "notes", ())))


def planned(s: S) -> S:
    """Return the settings with the device of the plan: a GPU if ``gpu`` names its type."""
    if s.gpu is None:
        return s
    return s.model_copy(update={"engine": s.engine.model_copy(update={"device": "cuda"})})


def is_elsewhere(s: RecipeSettings) -> bool:
    """Return True if servers and ranks run on a cluster, or the plan is for GPUs that this machine lacks."""
    return s.cluster != "none" or (s.gpu is not None and device_name("auto") == "cpu")


def _sampling_memory(
    s: RecipeSettings, policies: Sequence[tuple[Role, ModelShape]], dialogues: int, length: int
) -> MemoryPlan:
    """Plan the memory of stages that sample in this process."""
    terms, size = Counter({"libraries": LIBRARIES}), weight_dtype(s).itemsize
    bases = set[str]()
    for role, shape in policies:
        # Roles that share a base need its weights only once.
        base = role.model if keeps_bases(s) else role.shares or role.name
        terms["weights"] += shape.weight_memory(size) * (base not in bases)
        bases.add(base)
        terms.update(cache_memory(shape, s.engine, size, dialogues, length))
    advice = ("a training in bfloat16", "engine.max_batch=16", "engine.cache_gib=1")
    return MemoryPlan("sampling", terms, advice)


def _training_memory(s: RecipeSettings, name: str, model: TrainedModel) -> MemoryPlan:
    """Plan the memory of a training in this process or on ranks of its own."""
    shared = shared_group(s, name)
    ranks, sharded = rank_count(model.settings, shared)
    options: dict[str, Any] = {"device": s.engine.device_name, "ranks": ranks, "sharded": sharded}
    return training_memory(name, [model], shared=shared, **options)


def rank_count(training: TrainingSettings, key: str) -> tuple[int, bool]:
    """Return the number of ranks of a training (1 in this process), and True if they shard the weights."""
    config = accelerate_config(training, key) if launches(training) else {}
    return config.get("num_processes", 1), config.get("distributed_type") == "FSDP"


def _check_services(
    s: RecipeSettings,
    environment: Environment,
    trainings: Mapping[str, TrainingSettings],
    *,
    policies: int,
    reach: bool,
) -> None:
    """Raise ``UserError`` for unavailable servers, ranks, tracker or sandbox."""
    sampled = [key for key in trainings if key != CRITIC_TRAINING]
    check_served(s, {shared_group(s, key): trainings[key] for key in sampled})
    for key, training in trainings.items():
        check_ranks(s, training, shared_group(s, key))
    if reach and (cluster := open_cluster(s.cluster)) is not None:
        vllm = s.engine.vllm if s.engine.kind == "vllm" else None
        cluster.check(cluster_needs(s, [*trainings.values()], policies), vllm)
    check_tracker(s.tracker)
    if (limits := sandbox_settings(s, environment)) is not None:
        # Only environments that run programs load the sandbox.
        from coterie.tools.sandbox.worker import make_jail

        make_jail(limits)


def sandbox_settings(s: RecipeSettings, environment: Environment) -> "SandboxSettings | None":
    """Return the settings of the sandbox if an environment needs it, else ``None``."""
    if not environment.needs:
        return None
    # An environment with needs may have loaded the sandbox; others should not.
    from coterie.tools.sandbox.pool import Sandbox
    from coterie.tools.sandbox.worker import SandboxSettings

    limits: SandboxSettings = getattr(s, "sandbox", SandboxSettings())
    return limits if Sandbox in environment.needs else None


def cluster_needs(
    s: RecipeSettings, trainings: Sequence[TrainingSettings], policies: int = 1
) -> Needs:
    """Return the servers and ranks of a run; each policy has its own servers."""
    all_trainings = [
        getattr(s, "policy_training", None),
        *trainings,
    ]  # the first of reinforcement learning
    launched = [
        training for training in all_trainings if training is not None and launches(training)
    ]
    ranks = max((accelerate_config(training)["num_processes"] for training in launched), default=0)
    # External servers are no processes of this run.
    served = s.engine.kind == "vllm" and not s.engine.vllm.urls
    servers = policies * s.engine.vllm.servers if served else 0
    size = s.engine.vllm.tensor_parallel_size
    reinforced = all_trainings[0] is not None and launches(
        all_trainings[0]
    )  # its ranks live while servers sample
    return Needs(servers, size, ranks, together=s.engine.keep_servers or reinforced)


def check_ranks(s: RecipeSettings, training: TrainingSettings, key: str) -> None:
    """Raise ``UserError`` if the ranks of a training can't be started, here or on machines of the plan."""
    # Ranks that a scheduler starts have other devices than this machine.
    elsewhere = is_elsewhere(s) or UNDER_TORCHRUN in os.environ
    check_launch(training, "cpu" if elsewhere else s.engine.device_name, key)


def _check_disjoint(
    environment: Environment, train: Iterable[Task], heldout: Iterable[Task]
) -> None:
    """Raise ``UserError`` if a held-out task is also a training task, by id or by content."""
    # A split may contain a task under another id, so contents are compared too.
    trained = {key for task in train for key in (task.id, content_of(task, environment))}
    for task in heldout:
        if not trained.isdisjoint((task.id, content_of(task, environment))):
            problem = f"held-out task {task.id} is also a training task"
            fix = "correct the environment's splits: a score on trained tasks says nothing"
            raise UserError(problem, fix)


def content_of(task: Task, environment: Environment) -> str:
    """Return the content of a task: its public fields, and the secrets of simulated users.

    Users may write the same request and want different things.
    """
    secrets = [sorted(readable_secrets(task, person).items()) for person in persons_of(environment)]
    return f"{sorted(task.public.items())} {secrets}"


# Held-out questions are searched for in prompts by their words alone, anywhere in the prompt. Case, spaces, punctuation
# and invisible characters are ignored.

_WORD = re.compile(r"[^\W_]+")
_MIN_WORDS = 4
"""Leading words that index a question; a shorter question is indexed by all its words."""
Words = tuple[str, ...]


class HeldOutQuestions:
    """Index of questions that finds them inside longer texts."""

    def __init__(self, questions: Iterable[str]) -> None:
        self._beginning: dict[Words, list[Words]] = {}
        # Indexed by their first words, questions are found in one pass over a text.
        for question in questions:
            if question_words := _words(question):
                self._beginning.setdefault(question_words[:_MIN_WORDS], []).append(question_words)

    def occurs_in(self, text: str) -> bool:
        text_words = _words(text)
        return any(
            text_words[start : start + len(question)] == question
            for start in range(len(text_words))
            for length in range(1, _MIN_WORDS + 1)
            for question in self._beginning.get(text_words[start : start + length], ())
        )


def _words(text: str) -> Words:
    """Return the words of a text without invisible characters (zero-width characters, soft hyphens)."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    visible = "".join(character for character in plain if unicodedata.category(character) != "Cf")
    return tuple(_WORD.findall(visible))


def _first_prompt(
    environment: Environment, renderer: ChatRenderer, tasks: Sequence[Task], *, longest: bool
) -> int:
    """Return the tokens of the longest first prompt, or of the shortest one without a format.

    Renders only the tasks with the longest or shortest texts.
    """
    # A program has to be started for its first prompt.
    count = 1 if isinstance(environment, AnswersRequests) else RENDERED
    candidates = sorted(tasks, key=lambda task: len(str(task.public)), reverse=longest)[:count]
    hint = max(formats_of(environment), key=len, default=None) if longest else None
    lengths = (
        len(renderer.render(prompt.messages, prompt.tree, agent, tools=prompt.tools))
        for task in candidates
        for agent, prompt in first_prompts(environment, task, variant=hint).items()
    )
    return max(lengths) if longest else min(lengths)


def check_training(name: str, training: TrainingSettings, s: RecipeSettings, model: str) -> None:
    """Raise ``UserError`` if dtype, attention or adapter of a training do not fit the run or the model."""
    # torch takes seconds to import.
    import torch

    from coterie.models.adapters import add_lora

    if training.dtype == "float32" and weight_dtype(s) != torch.float32:
        problem = f"{name}.dtype=float32, but another training has bfloat16"
        raise UserError(problem, f"set {name}.dtype=bfloat16 too: a run has one dtype")
    if loads_in_4bit(s) and not training.load_in_4bit:
        problem = f"{name}.load_in_4bit=false, but another training of the run has true"
        raise UserError(problem, f"set {name}.method=lora {name}.load_in_4bit=true too")
    # FlashAttention has no masks for shared prefixes, so rows must be packed flat.
    flat = training.packing == "flat" and training.dtype == "bfloat16"
    if (s.engine.attention or "").startswith("flash") and not flat:
        problem = f"engine.attention={s.engine.attention} needs 16-bit weights and cannot train on shared prefixes"
        fix = f"set {name}.dtype=bfloat16 and {name}.packing=flat, or use engine.attention=sdpa"
        raise UserError(problem, fix)
    if training.method == "lora":
        # On a skeleton without weights, wrong targets are found at once.
        add_lora(skeleton(model), r=1, alpha=1, target_modules=training.lora_targets)


def check_room(name: str, training: TrainingSettings, context: int, shortest: int) -> None:
    """Raise ``UserError`` if ``max_length`` is shorter than every prompt, so that no row is left."""
    if training.max_length <= shortest:
        problem = f"{name}.max_length={training.max_length} leaves nothing to train on"
        fix = f"use {name}.max_length={context}, or the length of prompts and replies"
        raise UserError(f"{problem}: the shortest prompt has {shortest} tokens", fix)


def check_served(s: RecipeSettings, trainings: Mapping[str, TrainingSettings]) -> None:
    """Raise ``UserError`` if servers cannot start, or cannot load the models or adapters of a training.

    ``trainings`` are the trainings of the models that the servers sample from, by settings key.
    """
    engine = s.engine
    if loads_in_4bit(s):
        check_bitsandbytes()
        if engine.kind == "vllm":
            raise UserError(
                "engine.kind=vllm samples from a base in full precision, but load_in_4bit trains on one in 4 bits",
                "use engine.kind=inprocess, or dtype=bfloat16 instead of load_in_4bit",
            )
    if engine.kind != "vllm":
        return
    from coterie.engines.vllm import check_vllm
    from coterie.models.adapters import ALL_LINEAR

    # Servers of a cluster start on other machines, whose packages are not known here.
    if not is_elsewhere(s):
        check_vllm(engine.vllm)
    for name, training in trainings.items():
        if (
            training.method != "lora" or engine.vllm.urls
        ):  # external servers have limits of their own
            continue
        if training.rank > engine.vllm.lora_rank:
            problem = f"{name}.method=lora trains adapters of rank {training.rank}, but the vLLM servers load"
            problem += f" at most engine.vllm.lora_rank={engine.vllm.lora_rank}"
            raise UserError(problem, f"set engine.vllm.lora_rank={training.rank}")
        targets = set(training.lora_targets) - {ALL_LINEAR}
        if unserved := sorted(targets - set(engine.vllm.lora_modules)):
            raise UserError(
                f"{name}.lora_targets has {', '.join(unserved)}, which engine.vllm.lora_modules lacks",
                f"add {', '.join(unserved)} to engine.vllm.lora_modules",
            )
