"""Processes of a run: the driver, ranks, servers and sandbox workers, for ``--dry-run``."""

from rich.table import Table

from coterie.clusters import SLURM
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan, rank_count, sandbox_settings
from coterie.recipes.rl_settings import ReinforceRecipeSettings
from coterie.training.distributed import launches
from coterie.training.memory import in_gib

VLLM_MEMORY = 0.9
"""Share of a GPU's memory that vLLM uses by default."""
CRITIC = "critic"
"""Role that servers never sample from."""


def process_table(recipe: Recipe, plan: Plan) -> Table:
    """Return a table of the processes of a run, with their places, GPUs, ports and memory."""
    settings, on_gpu = recipe.settings, plan.device != "cpu"
    here = "first node of the job" if settings.cluster == SLURM else "this machine"
    elsewhere = {"none": here, SLURM: "node of the job"}.get(
        settings.cluster, "node of Ray's choice"
    )
    trainings = dict(recipe.trainings())
    # The policy's training in reinforcement learning is not one on rows or pairs.
    if isinstance(settings, ReinforceRecipeSettings):
        trainings[settings.policy_group] = settings.policy_training
    ranks = {
        name: rank_count(training, name)[0]
        for name, training in trainings.items()
        if launches(training)
    }
    # Trainings without ranks of their own take place in the driver.
    in_driver = [memory for memory in plan.memory if not ranks.get(memory.stage)]
    heads = ("process", "count", "where", "GPUs", "ports", "memory")
    table = Table(*heads, title="processes", box=None)
    work = ", ".join(["store, environments, rewards", *(memory.stage for memory in in_driver)])
    size = in_gib(max(memory.total for memory in in_driver)) if in_driver else "under 2"
    gpu = (settings.engine.device.partition(":")[2] or "0") if in_driver and on_gpu else "none"
    table.add_row(f"driver ({work})", "1", here, gpu, "none", f"{size} GiB")
    each = "1 each" if on_gpu else "none"
    for memory in plan.memory:
        if count := ranks.get(memory.stage):
            # The plan counts the memory of one GPU, or on a CPU of all ranks together.
            size = in_gib(memory.total if on_gpu else memory.total // count)
            name = f"rank of {memory.stage}"
            table.add_row(name, f"{count}", elsewhere, each, "1 for all", f"{size} GiB")
    vllm = settings.engine.vllm
    for role in plan.shapes if settings.engine.kind == "vllm" else ():
        if role == CRITIC or role in plan.critics:
            continue
        # Servers load weights in bfloat16, two bytes each.
        name, weights = f"vLLM server of {role}", 2 * plan.shapes[role].weights
        for url in vllm.urls:
            table.add_row(name, "1", "external", "unknown", url, "unknown")
        gpus, size = "none", f"{in_gib(weights)} GiB of weights"
        if on_gpu:
            budget = int((vllm.gpu_memory_utilization or VLLM_MEMORY) * plan.available)
            free = max(0, budget * vllm.tensor_parallel_size - weights)
            # Cached keys and values have two bytes each as well.
            tokens = free // (2 * plan.shapes[role].cache_token)
            gpus = " and ".join(vllm.devices) or f"{vllm.tensor_parallel_size} each"
            size = f"{in_gib(budget)} GiB of each GPU, {tokens:,} cached tokens"
        if not vllm.urls:
            table.add_row(name, f"{vllm.servers}", elsewhere, gpus, "1 each", size)
    if (limits := sandbox_settings(settings, recipe.environment)) is not None:
        size = f"{limits.memory_mib / 1024:g} GiB"
        table.add_row("sandbox worker", f"{limits.count}", here, "none", "none", size)
    return table
