"""Processes of a run, and the time of a training step on other numbers of GPUs.

Times are computed from the data sheets in ``GPUS`` and the constants below, not measured. All dialogues have their
maximum length. With N weights, a token costs 2 N FLOPs forward and 6 N in training; each key that it attends to costs
4 FLOPs per layer and element of a query.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from rich.table import Table

from coterie.clusters.cluster import SLURM
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan, max_dialogue_tokens, rank_count
from coterie.recipes.rl_settings import ReinforceRecipeSettings
from coterie.recipes.settings import GPU, GPUS
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from coterie.training.distributed import launches
from coterie.training.memory import ModelShape, TrainedModel, in_gib, training_memory

COMPUTE, BANDWIDTH = 0.4, 0.6
"""Shares of the peak FLOP/s (training, prompts) and of the memory bandwidth (decoding) that a run reaches."""
SHARED, HOST = 4e9, 10e9
"""Bytes per second of a shared folder (all nodes together) and of /dev/shm."""
TOOL_SECONDS, CPU_SECONDS = 1.0, 0.1
"""Seconds of the tool calls of a turn, and seconds of a core that they take in the sandbox."""
NODE = 8
"""GPUs of a node."""
UTILIZATION = 0.9
"""Share of a GPU's memory that vLLM uses by default."""
SIZES = (1, 8, 64, 1000)
CRITIC, UPDATE = "critic", "update"
"""Role that servers never sample from, and stage of reinforcement learning."""
PARTS = ("sampling", "environment", "training", "weight transfer")


def process_table(recipe: Recipe, plan: Plan) -> Table:
    """Return a table of the driver, the ranks of each training, the servers of each role, and sandbox workers."""
    s, on_gpu = recipe.settings, plan.device != "cpu"
    here = "first node of the job" if s.cluster == SLURM else "this machine"
    other = {"none": here, SLURM: "node of the job"}.get(s.cluster, "node of Ray's choice")
    trainings = dict(recipe.trainings())
    if isinstance(s, ReinforceRecipeSettings):
        trainings[UPDATE] = s.policy_training
    ranks = {name: rank_count(one, name)[0] for name, one in trainings.items() if launches(one)}
    own = [one for one in plan.memory if not ranks.get(one.stage)]
    heads = ("process", "count", "where", "GPUs", "ports", "memory")
    table = Table(*heads, title="processes", box=None)
    work = ", ".join(["store, environments, rewards", *(one.stage for one in own)])
    size = in_gib(max(one.total for one in own)) if own else "under 2"
    gpu = (s.engine.device.partition(":")[2] or "0") if own and on_gpu else "none"
    table.add_row(f"driver ({work})", "1", here, gpu, "none", f"{size} GiB")
    each = "1 each" if on_gpu else "none"
    for one in plan.memory:
        if count := ranks.get(one.stage):
            size = in_gib(one.total if on_gpu else one.total // count)
            name = f"rank of {one.stage}"
            table.add_row(name, f"{count}", other, each, "1 for all", f"{size} GiB")
    vllm = s.engine.vllm
    for role in plan.shapes if s.engine.kind == "vllm" else ():
        if role == CRITIC:
            continue
        name, weights = f"vLLM server of {role}", 2 * plan.shapes[role].weights
        for url in vllm.urls:
            table.add_row(name, "1", "external", "unknown", url, "unknown")
        gpus, size = "none", f"{in_gib(weights)} GiB of weights"
        if on_gpu:
            room = int((vllm.gpu_memory_utilization or UTILIZATION) * plan.available)
            free = max(0, room * vllm.tensor_parallel_size - weights)
            tokens = free // (2 * plan.shapes[role].cache_token)
            gpus = " and ".join(vllm.devices) or f"{vllm.tensor_parallel_size} each"
            size = f"{in_gib(room)} GiB of each GPU, {tokens:,} cached tokens"
        if not vllm.urls:
            table.add_row(name, f"{vllm.servers}", other, gpus, "1 each", size)
    if Sandbox in recipe.environment.needs:
        limits = getattr(s, "sandbox", SandboxSettings())
        size = f"{limits.memory_mib / 1024:g} GiB"
        table.add_row("sandbox worker", f"{limits.count}", here, "none", "none", size)
    return table


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step on a number of ranks and servers."""

    ranks: int
    servers: int
    parts: Mapping[str, float]
    seconds: float

    @property
    def limit(self) -> str:
        return max(self.parts, key=self.parts.__getitem__)


@dataclass(frozen=True, slots=True)
class Workload:
    """Work of a step of reinforcement learning."""

    settings: ReinforceRecipeSettings
    shape: ModelShape
    turns: int
    length: int
    """Tokens of a dialogue, and of its row."""
    models: int = 1
    """Policies and critics, which train in turn."""
    workers: int | None = None
    """Workers of the sandbox; ``None`` if no tool uses it."""

    @property
    def server_gpus(self) -> int:
        return self.settings.engine.vllm.tensor_parallel_size

    @property
    def dialogues(self) -> int:
        return self.settings.rollout.draw_count * self.settings.rollout.samples

    @property
    def new(self) -> int:
        """Maximum number of sampled tokens of a dialogue."""
        return min(self.length, self.turns * self.settings.rollout.max_tokens)

    @property
    def trained(self) -> int:
        """Trained tokens of all epochs."""
        s = self.settings
        return s.rollout.tasks * s.rollout.samples * s.steps.epochs * self.length

    @property
    def token_flops(self) -> float:
        """FLOPs of a token forward, at the middle of its row."""
        queries = self.shape.layers * self.shape.heads * self.shape.head_width
        return 2 * self.shape.weights + 4 * queries * self.length / 2

    @property
    def training_flops(self) -> float:
        s = self.settings
        extra = (s.loss.old == "recomputed") + bool(s.loss.kl or s.reward.kl)
        passes = 3 + s.train.gradient_checkpointing + extra / s.steps.epochs
        return self.models * passes * self.trained * self.token_flops

    @property
    def transfer_bytes(self) -> int:
        training = self.settings.policy_training
        if training.method == "lora":
            return 4 * self.shape.adapter(training)
        return self.shape.weights * (2 if training.dtype == "bfloat16" else 4)

    def fits(self, ranks: int, gpu: GPU) -> bool:
        training = self.settings.policy_training
        model = TrainedModel(self.shape, training, self.length, reads="shown entropies")
        sharded, models = ranks > 1 and training.method == "full", [model] * self.models
        plan = training_memory(UPDATE, models, device="cuda", ranks=ranks, sharded=sharded)
        return plan.total <= gpu.memory

    def decoding(self, batch: int, gpu: GPU) -> float:
        """Return the seconds to decode a token of ``batch`` dialogues: to read weights and keys, or to compute."""
        cached = 2 * self.shape.cache_token * self.length / 2
        read = (2 * self.shape.weights + batch * cached) / (gpu.bandwidth * BANDWIDTH)
        return max(read, batch * self.token_flops / (gpu.flops * COMPUTE)) / self.server_gpus

    def sampling(self, servers: int, gpu: GPU) -> float:
        """Return the seconds to read the prompts and to decode all turns, batch after batch.

        A batch has the dialogues that memory and settings allow.
        """
        engine, each = self.settings.engine, ceil(self.dialogues / servers)
        free = UTILIZATION * gpu.memory * self.server_gpus - 2 * self.shape.weights
        room = int(free / (2 * self.shape.cache_token * self.length))
        own = engine.max_batch if engine.kind == "inprocess" else engine.vllm.requests_per_server
        batch = max(1, min(own, room, each))
        prompts = each * (self.length - self.new) * self.token_flops
        reading = prompts / (self.server_gpus * gpu.flops * COMPUTE)
        return ceil(each / batch) * self.new * self.decoding(batch, gpu) + reading

    def update(self, ranks: int, gpu: GPU) -> float:
        """Return the seconds of the training on ranks, which share the micro-batches of an update.

        For each micro-batch, ranks with slices gather the weights twice and scatter gradients, beside computing.
        Ranks with copies exchange the adapter's gradients once per update.
        """
        training, updates = self.settings.policy_training, self.settings.steps
        tokens, number = training.tokens_per_microbatch, updates.minibatches * updates.epochs
        count = number * ceil(ceil(self.trained / number / tokens) / ranks)
        computing = count * self.training_flops / self.trained * tokens / (gpu.flops * COMPUTE)
        link = gpu.link if ranks <= NODE else gpu.network
        exchange = self.models * self.transfer_bytes * (ranks - 1) / ranks / link
        if training.method == "full":
            return max(computing, 3 * count * exchange)
        return computing + 2 * number * exchange

    def transfer(self, servers: int, gpus: int, gpu: GPU) -> float:
        """Return the seconds to gather the weights and bring them to all servers."""
        transport = self.settings.engine.vllm.transfer
        if transport == "shm":
            return (1 + servers) * self.transfer_bytes / HOST
        if transport in ("nccl", "ipc"):
            return 2 * self.transfer_bytes / (gpu.link if gpus <= NODE else gpu.network)
        return (1 + ceil(gpus / NODE)) * self.transfer_bytes / SHARED  # a node reads a file once

    def step(self, gpus: int, gpu: GPU) -> StepCost | None:
        """Return the cost of a step with the fastest split into ranks and servers; ``None`` if memory is short.

        If there are no GPUs for both, sampling and training take turns.
        """
        calls = self.turns * bool(self.settings.tools.use)
        tools = calls * max(TOOL_SECONDS, self.dialogues * CPU_SECONDS / (self.workers or inf))
        alone, costs = gpus <= self.server_gpus, list[StepCost]()
        overlap = self.settings.rollout.max_staleness > 0 and not alone
        for ranks in [gpus] if alone else range(1, gpus - self.server_gpus + 1):
            if not costs and not self.fits(ranks, gpu):
                continue
            servers = 1 if alone else (gpus - ranks) // self.server_gpus
            rollout, update = self.sampling(servers, gpu), self.update(ranks, gpu)
            transfer = self.transfer(servers, gpus, gpu)
            parts = dict(zip(PARTS, (rollout, tools, update, transfer), strict=True))
            seconds = max(rollout + tools, update) if overlap else rollout + tools + update
            costs.append(StepCost(ranks, servers, parts, seconds + transfer))
        return min(costs, key=lambda cost: cost.seconds, default=None)


def workload(recipe: Recipe, plan: Plan) -> Workload | None:
    """Return the work of a step of reinforcement learning; ``None`` for other recipes."""
    s, turns = recipe.settings, plan.turns or 1
    if not isinstance(s, ReinforceRecipeSettings) or plan.memory[-1].stage != UPDATE:
        return None
    longest = max_dialogue_tokens(plan.longest_prompt, turns, s.rollout.max_tokens)
    length, sandbox = min(longest, plan.context, s.update.max_length), SandboxSettings()
    workers = sandbox.count if Sandbox in recipe.environment.needs else None
    shape = max(plan.shapes.values(), key=lambda one: one.weights)
    return Workload(s, shape, turns, length, len(plan.shapes), workers)


def cost_table(work: Workload) -> Table:
    """Return a table of the time of a step on 1 to 1,000 GPUs, with the figures that it is computed from."""
    gpu = GPUS[name := work.settings.gpu or "H100"]
    title = f"seconds of a step on {name} GPUs, computed from data sheets, not measured"
    table = Table("GPUs", "ranks", "servers", *PARTS, "step", "limit", title=title, box=None)
    for gpus in SIZES:
        if cost := work.step(gpus, gpu):
            seconds = (f"{value:.3g}" for value in (*cost.parts.values(), cost.seconds))
            counts = (f"{count:,}" for count in (gpus, cost.ranks, cost.servers))
            table.add_row(*counts, *seconds, cost.limit)
        else:
            table.add_row(f"{gpus:,}", *[""] * (len(PARTS) + 3), "memory of the training")
    read = work.dialogues * work.length
    table.caption = (
        f"A step samples {work.dialogues * work.new:,} tokens and reads {read:,} "
        f"({read * work.token_flops:.2g} FLOPs), trains {work.trained:,} ({work.training_flops:.2g} FLOPs), "
        f"and moves {work.transfer_bytes / 1e9:.3g} GB of weights. {name}: {gpu.flops / 1e12:g} TFLOP/s "
        f"(dense bfloat16), {gpu.bandwidth / 1e12:g} TB/s, {gpu.memory / 1e9:g} GB, {gpu.link / 1e9:g} GB/s "
        f"within and {gpu.network / 1e9:g} GB/s between nodes of {NODE}. Assumed: {COMPUTE:.0%} of the FLOP/s, "
        f"{BANDWIDTH:.0%} of the bandwidth, {SHARED / 1e9:g} GB/s of a shared folder, {TOOL_SECONDS:g} s for "
        f"the tools of a turn, {CPU_SECONDS:g} s of a core in the sandbox."
    )
    return table
