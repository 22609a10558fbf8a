"""The ranks of configs/two-nodes-*.yaml without a GPU: Qwen3-8B on a fake process group, as Accelerate shards it."""

import sys
from subprocess import run
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, Qwen3Config

from coterie.record.rows import Row, Target
from coterie.training.batches import prepare_model
from coterie.training.distributed import open_accelerator
from coterie.training.memory import ModelShape, TrainedModel, training_memory
from coterie.training.policy_gradient import PolicyGradient
from coterie.training.reference import LossModule
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import make_optimizer
from tests.training.test_memory import QWEN3_8B

LENGTH = 8192
SETTINGS = TrainingSettings(
    dtype="bfloat16",
    gradient_checkpointing=True,
    max_length=LENGTH,
    tokens_per_microbatch=2 * LENGTH,
)
FSDP2 = {
    "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "0", "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}  # fmt: skip
"""What `accelerate launch` sets for configs/accelerate/fsdp2.yaml."""


def qwen3(layers: int) -> Any:
    sizes = {**QWEN3_8B.to_dict(), "num_hidden_layers": layers, "layer_types": None}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(Qwen3Config(**sizes), dtype=torch.bfloat16)


def wrapping() -> None:
    """Shard all 36 layers over 64 ranks."""
    model = qwen3(36)
    with (
        prepare_model(model, SETTINGS) as prepared,
        open_accelerator(SETTINGS, torch.device("cpu")) as accelerator,
    ):
        assert accelerator.is_fsdp2 and accelerator.num_processes == 64
        with prepared.training():
            module = LossModule(model, PolicyGradient())
            optimizer = make_optimizer(dict(model.named_parameters()), SETTINGS)
            wrapped, _ = accelerator.prepare(module, optimizer)
        layers = [one for one in wrapped.modules() if type(one).__name__.endswith("DecoderLayer")]
        assert len(layers) == 36 and all(isinstance(one, FSDPModule) for one in layers)
        weights = list(wrapped.parameters())
        assert all(isinstance(one, DTensor) for one in weights)
        assert 64 * sum(one.to_local().numel() for one in weights) == 8_190_735_360


def memory() -> None:
    """Take a step of fake tensors on one of eight ranks, and compare its peak with the plan."""
    model = qwen3(6)  # all 36 take minutes
    shape = ModelShape.of(model)
    known = {"logprobs": (-1.0,) * (LENGTH - 1), "advantages": (1.0,) * (LENGTH - 1)}
    row = Row((5,) * LENGTH, (Target(1, LENGTH, "policy@0"),), **known)
    with (
        prepare_model(model, SETTINGS) as prepared,
        open_accelerator(SETTINGS, torch.device("cpu")) as accelerator,
        prepared.training(),
    ):
        module = LossModule(model, PolicyGradient())
        optimizer = make_optimizer(dict(model.named_parameters()), SETTINGS)
        wrapped, _ = accelerator.prepare(module, optimizer)
        with FakeTensorMode(allow_non_fake_inputs=True):
            wrapped.to_empty(device="cpu")
            optimizer = make_optimizer(dict(model.named_parameters()), SETTINGS)
            tracker = MemTracker()
            for step in range(2):  # the first makes the moments
                if step:
                    tracker.track_external(wrapped, optimizer)
                    tracker.__enter__()
                wrapped([row, row], counts=False).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            tracker.__exit__(None, None, None)
            peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    trained = TrainedModel(shape, SETTINGS, LENGTH, reads="entropies_no_grad")
    plan = training_memory("train", [trained], device="cpu", ranks=8, sharded=True)
    driver = plan.terms["model of the process that starts the ranks"]
    ratio = peak / ((plan.total - driver - plan.terms["libraries"]) / 8)
    print(f"{peak / 2**30:.2f} GiB, {ratio:.3f} of the plan")
    assert 0.75 < ratio < 1, (
        ratio
    )  # the plan counts the embedding's gradient beside all activations


@pytest.mark.parametrize(("check", "ranks"), [("wrapping", 64), ("memory", 8)])
def test_qwen3_8b_is_sharded_and_takes_the_planned_memory(check: str, ranks: int) -> None:
    done = run([sys.executable, "-m", __name__, check, str(ranks)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**FSDP2, "WORLD_SIZE": sys.argv[2]}.items():
            patch.setenv(name, value)
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=int(sys.argv[2]))
        {"wrapping": wrapping, "memory": memory}[sys.argv[1]]()
