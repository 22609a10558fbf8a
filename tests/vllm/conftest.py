"""A real vLLM server (CPU build) and the same model in this process, by ``make test-vllm``; elsewhere skipped."""

import asyncio
import importlib.util
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coterie.engines.pool import ServerPool, vllm_pool
from coterie.engines.settings import VLLMSettings
from coterie.models.loading import LoadedModel, load

MODEL = "tiny-exchange"
SETTINGS = VLLMSettings(
    dtype="float32",
    enforce_eager=True,
    lora_rank=4,
    start_seconds=240,
    stall_seconds=60,
    grace_seconds=10,
    arguments={"max_num_seqs": 16, "block_size": 32},
)
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.vllm)
        if importlib.util.find_spec("vllm") is None:
            item.add_marker(pytest.mark.skip(reason="no vllm here; make test-vllm has one"))


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return load(MODEL)


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all tests: a pool lives on the loop that it was opened on."""
    with asyncio.Runner() as loop:
        yield loop


@pytest.fixture(scope="session")
def pool(
    runner: asyncio.Runner, model: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerPool]:
    stack = AsyncExitStack()
    logs = tmp_path_factory.mktemp("logs")
    opened = vllm_pool(MODEL, model.renderer, SETTINGS, logs, policy="talker", version="0")
    yield runner.run(stack.enter_async_context(opened))
    runner.run(stack.aclose())
