"""Two real vLLM servers: prompts stay where their beginnings are."""

import asyncio
import random
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack

import psutil
import pytest

from coterie.engines.pool import ServerPool, vllm_pool
from coterie.engines.protocol import Sampling
from coterie.models.loading import LoadedModel
from tests.vllm.conftest import MODEL, SETTINGS

BLOCK = 32
BLOCKS = 4
HOT = Sampling(temperature=1.3, max_tokens=8)


@pytest.fixture(scope="module")
def pair(
    runner: asyncio.Runner, model: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerPool]:
    """Two servers, which are gone afterwards."""
    before = psutil.Process().children(recursive=True)
    stack = AsyncExitStack()
    opened = vllm_pool(
        MODEL, model.renderer, SETTINGS.model_copy(update={"servers": 2}),
        tmp_path_factory.mktemp("pair"), policy="talker", version="0",
    )  # fmt: skip
    yield runner.run(stack.enter_async_context(opened))
    now = psutil.Process().children(recursive=True)
    started = [process for process in now if process not in before]
    assert len(started) >= 6  # for each server its guard, itself, its engine
    runner.run(stack.aclose())
    assert not [process for process in started if process.is_running()]


def prompt_tokens(runner: asyncio.Runner, pool: ServerPool) -> list[int]:
    found = []
    for member in pool.members:
        text = runner.run(member.client._send("GET", "/metrics", None)).text
        counts = re.findall(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
        found.append(round(sum(map(float, counts))))
    return found


def test_a_prompt_goes_to_the_server_that_has_its_beginning(
    runner: asyncio.Runner, pair: ServerPool
) -> None:
    draw = random.Random(0)
    beginnings = [[draw.randrange(10, 1000) for _ in range(BLOCK * BLOCKS)] for _ in range(6)]
    before = prompt_tokens(runner, pair)
    for length in range(1, 4):
        for beginning in beginnings:
            (said,) = runner.run(pair.sample([*beginning, *range(20, 20 + length)], [0], HOT))
            assert said.cached == (0 if length == 1 else BLOCK * BLOCKS)
    given = [now - then for now, then in zip(prompt_tokens(runner, pair), before, strict=True)]
    assert given[0] == given[1] > 0
