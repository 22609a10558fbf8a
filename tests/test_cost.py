"""The cost model of a step against numbers worked out by hand, and the processes of a run."""

from dataclasses import replace

import pytest

from coterie.recipes.cost import Workload, process_table, workload
from coterie.recipes.registry import recipe, settings
from coterie.recipes.rl_settings import ReinforceRecipeSettings
from coterie.recipes.settings import GPU, GPUS
from coterie.training.memory import ModelShape

SHAPE = ModelShape(
    weights=10**9, largest=10**8, layer=8 * 10**7, linear={"q_proj": (10**6, 20_000)}, output=10**8,
    layers=10, hidden=512, intermediate=2048, heads=8, kv_heads=2, head_width=64, vocabulary=32_000,
    context=4096, normalized_heads=False, compiled=False,
)  # fmt: skip
ROUND = GPU(flops=1e12, bandwidth=1e12, memory=10**11, link=1e12, network=1e11)
"""A GPU of which 4e11 FLOP/s and 6e11 bytes/s are reached."""
WORDS = (
    "environment=exchange", "rollout.tasks=4", "rollout.samples=8", "rollout.max_tokens=100",
    "update.max_length=1200", "update.tokens_per_microbatch=1200", "loss.kl=0",
)  # fmt: skip


def work(*words: str) -> Workload:
    """Work of 4 groups of 8 dialogues: two turns of 100 tokens, and 100 tokens of prompts."""
    own = settings("rl/grpo", [*WORDS, *words])
    assert isinstance(own, ReinforceRecipeSettings)
    return Workload(own, SHAPE, turns=2, length=300)


def test_the_parts_of_a_step_are_those_worked_out_by_hand() -> None:
    one = work()
    # 10 layers * 8 heads * 64 = 5,120 query elements; 4 * 5,120 FLOPs for each of 150 keys
    token = 2e9 + 4 * 5120 * 150
    assert one.token_flops == token == 2_003_072_000
    assert (one.dialogues, one.new, one.trained) == (32, 200, 9600)
    assert one.training_flops == 3 * 9600 * token
    assert one.transfer_bytes == 4 * 10**9, "float32"
    # 16 dialogues for each of two servers; keys and values of a token: 2 * 10 layers * 2 heads * 64, 2 bytes each
    read, computed = (2e9 + 16 * 150 * 2 * 2560) / 6e11, 16 * token / 4e11
    assert one.decoding(16, ROUND) == pytest.approx(max(read, computed))
    # 200 decoding steps, and 1,600 tokens of prompts
    assert one.sampling(2, ROUND) == pytest.approx(200 * 0.08012288 + 1600 * token / 4e11)
    # 8 micro-batches of 1,200 tokens on 3 ranks: 3 rounds, of 6 N FLOPs and attention
    assert one.update(3, ROUND) == pytest.approx(3 * 3 * 1200 * token / 4e11)
    slow = replace(ROUND, link=1e8)  # three exchanges of 2/3 of 4 GB for each micro-batch
    assert one.update(3, slow) == pytest.approx(3 * 3 * 4e9 * 2 / 3 / 1e8)
    # written once and read by one node, at 4 GB/s
    assert one.transfer(2, 5, ROUND) == pytest.approx(2.0)
    # 3 ranks and 2 servers: 24.0 + 54.1 + 2 s; 4 and 1 would be 48.1 + 36.1 + 2, and 2 and 3 16.5 + 72.1 + 2
    step = one.step(5, ROUND)
    assert step is not None and (step.ranks, step.servers, step.limit) == (3, 2, "training")
    assert list(step.parts.values()) == pytest.approx([24.036864, 0.0, 54.082944, 2.0])
    assert step.seconds == pytest.approx(80.119808)


def test_a_reference_a_recomputation_and_an_adapter_count() -> None:
    passes = work("loss.kl=0.1", "loss.old=recomputed", "train.gradient_checkpointing=true")
    assert passes.training_flops == pytest.approx(2 * work().training_flops), "6 passes, not 3"
    adapter = work("train.method=lora", "train.lora_r=8", "train.lora_targets=[q_proj]")
    assert adapter.transfer_bytes == 4 * 8 * 20_000
    assert adapter.update(3, replace(ROUND, link=1e8)) - adapter.update(
        3, replace(ROUND, link=1e18)
    ) == pytest.approx(2 * 640_000 * 2 / 3 / 1e8)


def test_more_gpus_and_faster_ones_are_never_slower_and_the_limit_moves() -> None:
    one = work("rollout.tasks=64")
    costs = [one.step(n, ROUND) for n in (1, 2, 4, 8)]
    seconds = [cost.seconds for cost in costs if cost]
    assert len(seconds) == 4 and seconds == sorted(seconds, reverse=True)
    by_servers = [one.sampling(n, ROUND) for n in (1, 2, 8, 64, 512, 1000)]
    assert by_servers == sorted(by_servers, reverse=True) and by_servers[-1] == by_servers[-2]
    by_ranks = [one.update(n, ROUND) for n in (1, 2, 8, 64, 128)]
    assert by_ranks == sorted(by_ranks, reverse=True)
    for name in ("flops", "bandwidth", "link", "network"):
        faster = one.step(64, replace(ROUND, **{name: 2 * getattr(ROUND, name)}))
        slower = one.step(64, ROUND)
        assert faster and slower and faster.seconds <= slower.seconds
    many = one.step(1000, GPUS["H100"])
    assert costs[0] and costs[0].limit == "training" and many
    assert many.limit == "weight transfer", "125 nodes read one shared folder"
    tools = replace(one, workers=1, settings=one.settings.model_copy(
        update={"tools": one.settings.tools.model_copy(update={"use": ("python",)})}
    ))  # fmt: skip
    slow = tools.step(64, GPUS["H100"])
    assert slow and slow.limit == "environment"
    assert slow.parts["environment"] == 2 * 0.1 * 512 / 1


def test_a_training_that_fits_on_no_gpu_has_no_cost() -> None:
    small = replace(ROUND, memory=12 * 10**9)
    assert work().step(1, small) is None
    shared = work().step(8, small)
    assert shared is not None and shared.ranks > 1


def rows(*words: str) -> list[tuple[str, ...]]:
    one = recipe(settings("rl/grpo", ["environment=exchange", "gpu=H100", *words]))
    table = process_table(one, one.plan())
    return list(zip(*(column._cells for column in table.columns), strict=True))


def test_every_process_has_its_gpus_ports_and_memory() -> None:
    (driver,) = rows()
    assert driver[0] == "driver (store, environments, rewards, sampling, update)"
    assert driver[1:5] == ("1", "this machine", "0", "none")
    words = ("engine.kind=vllm", "engine.vllm.servers=2", 'engine.vllm.devices=["1,2","3,4"]')
    driver, servers = rows(*words, "engine.vllm.tensor_parallel_size=2")
    assert driver[0] == "driver (store, environments, rewards, update)"
    assert servers[:5] == ("vLLM server of policy", "2", "this machine", "1,2 and 3,4", "1 each")
    assert servers[5].startswith("67.1 GiB of each GPU"), "0.9 of 80 GB"
    urls = ("http://one:8000", "http://two:8000")
    _, *external = rows("engine.kind=vllm", f"engine.vllm.urls=[{','.join(urls)}]")
    assert [(row[2], row[4]) for row in external] == [("external", url) for url in urls]


def test_ranks_of_a_training_are_processes_of_their_own() -> None:
    one = recipe(settings("optima/isft", ["gpu=H100", "train.processes=4"]))
    table = process_table(one, one.plan())
    names = dict(zip(table.columns[0]._cells, table.columns[1]._cells, strict=True))
    assert names == {"driver (store, environments, rewards, sampling)": "1", "rank of train": "4"}
    assert workload(one, one.plan()) is None
