"""The configurations for several GPUs: FSDP2 really runs (on two CPU ranks), the others are loaded."""

from contextlib import nullcontext

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from coterie.errors import UserError
from coterie.models.adapters import add_head
from coterie.training import trainer
from coterie.training.losses import DPO, Regression
from coterie.training.trainer import train
from tests.fsdp2_side import OBJECTIVE, pairs, settings
from tests.launching import CONFIGS, launch
from tests.training_models import tiny_llama

SIDE = "tests.fsdp2_side"


@pytest.mark.ranks
@pytest.mark.parametrize("method", ["full", "lora"])
def test_two_sharded_ranks_stop_resume_and_end_with_the_weights_of_one(method, tmp_path):
    file = "model.safetensors" if method == "full" else "adapter_model.safetensors"
    launch("fsdp2.yaml", 2, SIDE, method, tmp_path / "two", 4)
    assert not (tmp_path / "two" / "final").exists()
    assert len(list((tmp_path / "two").glob("checkpoint-*"))) == 1, "stopped between two steps"
    launch("fsdp2.yaml", 2, SIDE, method, tmp_path / "two", 0)
    assert "layers.0.self_attn.q_proj" in (tmp_path / "two" / "sharded.txt").read_text()
    train(tiny_llama(), pairs(), settings(method), tmp_path / "one", objective=DPO(OBJECTIVE))
    one, two = (load_file(tmp_path / name / "final" / file) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        assert float((weight - two[name]).abs().max()) < 1e-5, name


def test_a_value_head_is_refused_under_fsdp(monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "open_accelerator", lambda *_: nullcontext(Sharded))
    model = tiny_llama()
    add_head(model)
    with pytest.raises(UserError, match="can't be trained under FSDP"):
        train(model, pairs(), settings("full"), tmp_path, objective=Regression())


class Sharded:
    """Stands in for an Accelerate that a launcher told to shard: starting one takes seconds."""

    distributed_type = DistributedType.FSDP


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ddp", "MULTI_GPU"), ("fsdp2", "FSDP"), ("zero2", "DEEPSPEED"), ("zero3", "DEEPSPEED")],
)
def test_configurations_are_what_accelerate_reads(name, kind):
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert config.distributed_type == kind
    assert config.num_processes == 8
    assert config.mixed_precision == "no"
    if kind == "DEEPSPEED":
        assert config.deepspeed_config["zero_stage"] == int(name[-1])
    if kind == "FSDP":
        assert config.fsdp_config["fsdp_version"] == 2
