"""What can't work is refused with what to do, most of it before anything is started."""

import asyncio
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from coterie.engines.pool import vllm_pool
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import device_lists
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from tests.vllm.conftest import SETTINGS


def refusal(model: LoadedModel, folder: Path, **changes: object) -> str:
    """The error of opening a pool with these settings, of which no server is started."""
    said = error_of(model, folder, **changes)
    assert not list(folder.iterdir())  # no log: nothing was started
    return said


def error_of(model: LoadedModel, folder: Path, **changes: object) -> str:
    """The error of opening a pool with these settings."""
    settings = VLLMSettings(**{**SETTINGS.model_dump(), **changes})

    async def run() -> None:
        async with vllm_pool(
            "tiny-exchange", model.renderer, settings, folder, policy="talker", version="0"
        ):
            pass

    with pytest.raises(UserError) as error:
        asyncio.run(run())
    return str(error.value)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"port": 80}, "coterie sets --port itself"),
        ({"logprobs_mode": "raw_logprobs"}, "coterie sets --logprobs-mode itself"),
    ],
)
def test_an_argument_that_coterie_sets(
    model: LoadedModel, tmp_path: Path, arguments: dict[str, object], said: str
) -> None:
    assert said in refusal(model, tmp_path, arguments=arguments)


def test_an_argument_that_vllm_does_not_have_is_refused_in_its_own_words(
    model: LoadedModel, tmp_path: Path
) -> None:
    said = error_of(model, tmp_path, arguments={"max_num_sequences": 8})
    assert "did not start" in said and "--max-num-sequences" in said


def test_an_interpreter_without_vllm(model: LoadedModel, tmp_path: Path) -> None:
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    said = refusal(model, tmp_path, python=bare)
    assert f"{bare} has no working vLLM" in said and "pip install vllm" in said


def test_an_interpreter_that_is_not_there(model: LoadedModel, tmp_path: Path) -> None:
    assert "can't run /nowhere/python" in refusal(model, tmp_path, python="/nowhere/python")


def test_devices_are_dealt_out_and_too_few_are_refused() -> None:
    pair = VLLMSettings(servers=2, tensor_parallel_size=2)
    assert device_lists(pair, ["4", "5", "6", "7"]) == ["4,5", "6,7"]
    assert device_lists(pair, []) == []
    with pytest.raises(
        UserError, match="2 servers with 2 devices each need 4, but 3 are available"
    ):
        device_lists(pair, ["0", "1", "2"])
    with pytest.raises(ValidationError, match="give 2 devices to each of 2 servers"):
        VLLMSettings(servers=2, tensor_parallel_size=2, devices=("0,1", "2"))
