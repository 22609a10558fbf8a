"""Two real vLLM servers: prompts stay where their beginnings are; weights must be the same."""

import asyncio
import random
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import psutil
import pytest

from coterie.engines.pool import ServerPool, running_servers, vllm_pool
from coterie.engines.protocol import Sampling
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from tests.vllm.conftest import MODEL, SETTINGS
from tests.vllm.references import TOLERANCE, apart, behaviour, other_checkpoint, prompts

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


def prompt_tokens(pool: ServerPool) -> list[int]:
    found = []
    for member in pool.members:
        text = httpx2.get(f"{member.client.url}/metrics", trust_env=False).text
        counts = re.findall(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
        found.append(round(sum(map(float, counts))))
    return found


def test_a_prompt_goes_to_the_server_that_has_its_beginning(
    runner: asyncio.Runner, pair: ServerPool
) -> None:
    draw = random.Random(0)
    beginnings = [[draw.randrange(10, 1000) for _ in range(BLOCK * BLOCKS)] for _ in range(6)]
    before = prompt_tokens(pair)
    for length in range(1, 4):
        for beginning in beginnings:
            (said,) = runner.run(pair.sample([*beginning, *range(20, 20 + length)], [0], HOT))
            assert said.cached == (0 if length == 1 else BLOCK * BLOCKS)
    given = [now - then for now, then in zip(prompt_tokens(pair), before, strict=True)]
    assert given[0] == given[1] > 0


def test_all_servers_take_new_weights(
    runner: asyncio.Runner, pair: ServerPool, model: LoadedModel, tmp_path: Path
) -> None:
    prompt = prompts(model)[0]
    runner.run(pair.load(other_checkpoint(tmp_path / "other"), "1"))
    runner.run(pair.load(Path(model.source), "2"))
    for said in runner.run(pair.sample(prompt, range(8), HOT)):
        assert apart(said.logprobs, behaviour(model, prompt, said, HOT)) < TOLERANCE


def test_two_servers_with_different_weights_are_refused(
    runner: asyncio.Runner, pair: ServerPool, model: LoadedModel, tmp_path: Path
) -> None:
    folder = other_checkpoint(tmp_path / "other")
    one, two = pair.members

    async def use() -> None:
        urls = SETTINGS.model_copy(update={"urls": (one.client.url, two.client.url)})
        async with running_servers(model.renderer, urls, policy="talker", version="0"):
            pass

    runner.run(two.backend.reload(two.client, str(folder)))
    with pytest.raises(UserError, match="two servers have different weights"):
        runner.run(use())
    runner.run(pair.load(Path(model.source), "3"))
    runner.run(use())
