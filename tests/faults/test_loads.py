"""New weights on stub servers: all of them, or none is used."""

import asyncio
from pathlib import Path

import psutil
import pytest

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.pool import running_servers
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.errors import UserError
from coterie.models.loading import load
from tests.faults.conftest import MODEL, QUICK, at
from tests.faults.test_deaths import opened, server_process
from tests.helpers.stub_server import serve_stub
from tests.vllm.references import adapter, other_checkpoint

ASK = (list(range(10, 80)), (1, 2, 3), Sampling(temperature=1.3, max_tokens=16))


def in_process(folder: Path | None) -> list[Completion]:
    engine = InProcessEngine(load(MODEL), policy="talker", version="0")

    async def run() -> list[Completion]:
        if folder is not None:
            await engine.load(folder, "1")
        return await engine.sample(*ASK)

    return asyncio.run(run())


def test_all_servers_serve_what_was_loaded_also_after_a_death(tmp_path: Path) -> None:
    model = load(MODEL)
    other, lora = other_checkpoint(tmp_path / "other"), adapter(tmp_path / "lora", 0)
    wanted = {folder: in_process(folder) for folder in (None, other, lora)}
    assert len({tuple(said.ids for said in one) for one in wanted.values()}) == 3
    settings = QUICK.model_copy(update={"servers": 2})

    async def run() -> None:
        async with opened(model, tmp_path / "logs", settings) as pool:

            async def says(folder: Path | None) -> None:
                for member in pool.members:
                    for seed, said in zip(ASK[1], wanted[folder], strict=True):
                        found, _ = await member.client.complete(ASK[0], seed, ASK[2])
                        assert found.ids == said.ids

            await says(None)
            for number in (1, 2):
                await pool.load(lora, f"lora-{number}")
                assert all(m.client.model.endswith(f"-{number}") for m in pool.members)
                await says(lora)
            server_process(pool, 1).kill()
            while pool.members[1].up or not pool.stats.restarts:
                await asyncio.sleep(0.05)
            await pool.load(Path(model.source), "back")
            while not pool.members[
                1
            ].ready:  # the load does not wait for the one that is being started
                await asyncio.sleep(0.05)
            await says(None)
            await pool.load(other, "other")
            await says(other)
            server_process(pool, 0).kill()
            while pool.members[0].up:
                await asyncio.sleep(0.05)
            while not pool.members[0].up:
                await asyncio.sleep(0.05)
            await says(other)
            assert pool.stats.restarts == 2 and pool.version == "other"

    asyncio.run(run())


def test_servers_with_different_weights_or_raw_logprobs_are_refused(tmp_path: Path) -> None:
    model = load(MODEL)
    settings = QUICK.model_copy(update={"servers": 2})

    async def run() -> None:
        async with opened(model, tmp_path / "logs", settings) as pool:
            one, two = pool.members

            async def use() -> None:
                both_urls = at(one.client.url, two.client.url)
                async with running_servers(
                    model.renderer, both_urls, policy="talker", version="0"
                ) as both:
                    assert await both.sample(*ASK) == await pool.sample(*ASK)

            await use()
            kwargs = {"weights_path": str(other_checkpoint(tmp_path / "other"))}
            await two.client.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})
            with pytest.raises(UserError, match="two servers have different weights"):
                await use()
            with pytest.raises(UserError, match="log-probs before temperature"):
                async with (
                    serve_stub(MODEL, "talker", raw=True) as url,
                    running_servers(model.renderer, at(url), policy="talker", version="0"),
                ):
                    pass

    asyncio.run(run())


def test_nothing_is_sampled_after_a_load_that_failed_until_one_succeeds(tmp_path: Path) -> None:
    model = load(MODEL)
    broken = tmp_path / "broken"
    broken.mkdir()

    async def run() -> None:
        async with opened(model, tmp_path / "logs") as pool:
            before = await pool.sample(*ASK)
            with pytest.raises(UserError, match=r"no config\.json"):
                await pool.load(broken, "1")
            assert await pool.sample(*ASK) == before
            (broken / "config.json").write_text("{}")
            with pytest.raises(EngineError, match=r"loading .*broken as version 2 failed"):
                await pool.load(broken, "2")
            with pytest.raises(EngineError, match=r"loading .*broken as version 2 failed"):
                await pool.sample(*ASK)
            await pool.load(Path(model.source), "3")
            assert await pool.sample(*ASK) == before and pool.version == "3"

    asyncio.run(run())
    assert not [p for p in psutil.Process().children() if "child_guard.py" in " ".join(p.cmdline())]
