"""Reinforcement learning over servers: each version is published, loaded, and spoken by.

The servers are stubs (``tests/helpers/stub_server.py``) on the loop of the run, which give the tokens of the engine
in process to the last bit. ``tests/vllm`` does the same with vLLM, in whose place they stand here.
"""

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from coterie.engines import pool, vllm
from coterie.engines.pool import ServerPool, running_servers
from coterie.engines.protocol import EngineError
from coterie.engines.transfer import Send
from coterie.errors import UserError
from coterie.models.loading import load, resolve
from coterie.record.store import Store
from coterie.runs.loop import REINFORCE
from coterie.training.checkpoint import weight_hash
from tests.helpers.run_rl import (
    Killed,
    Killing,
    final_weights,
    informative_overrides,
    make_recipe,
    run_to_end,
)
from tests.helpers.stub_server import Stub, serve_stub
from tests.vllm.references import other_checkpoint

SERVED = ("engine.kind=vllm", "steps.count=3", "loss.kl_coef=0")
LORA = ("train.method=lora", "train.lora_r=4", "engine.vllm.lora_rank=4")


class Servers:
    """What servers of a run were asked to do, in order."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        """What they started with."""
        self.loaded: list[str] = []
        """The versions that they loaded after that."""
        self.adapters: list[str] = []
        """Under which names."""
        self.closed = 0

    @asynccontextmanager
    async def pool(
        self, model: str | Path, renderer: Any, own: Any, logs: Path, *, policy: str, version: str
    ) -> AsyncIterator[ServerPool]:
        """In the place of :func:`coterie.engines.pool.vllm_pool`."""
        self.opened.append(Path(model).name)
        async with (
            serve_stub(resolve(model), policy) as url,
            running_servers(
                renderer, own.model_copy(update={"urls": (url,)}), policy=policy, version=version
            ) as pool,
        ):
            load_weights = pool.load

            async def noted(path: Path, version: str, send: Send | None, expected: Any) -> None:
                assert (expected is None) == (version == "1"), "the last has no trainer any more"
                await load_weights(path, version, send, expected)
                self.loaded.append(version)
                model = pool.members[0].client.model
                self.adapters += [model] if model != policy else []

            pool.load = noted  # type: ignore[method-assign]
            yield pool
        self.closed += 1


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    found = Servers()
    monkeypatch.setattr(pool, "vllm_pool", found.pool)
    monkeypatch.setattr(vllm, "check_vllm", lambda settings: None)
    yield found
    assert found.closed == len(found.opened)


def writers(folder: Path) -> list[set[str]]:
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        found = []
        for step in range(3):
            trees = store.trees(0, f"{REINFORCE}/{step:05d}")
            found.append({t.writer for tree in trees for t in tree.turns.values() if t.sample})
    return found


@pytest.mark.slow
def test_runs_over_servers_end_as_runs_in_process_also_if_they_were_killed(
    tmp_path: Path, servers: Servers
) -> None:
    plain = informative_overrides(tmp_path)
    overrides, whole = [*plain, *SERVED], tmp_path / "whole"
    records = run_to_end(make_recipe("rl/grpo", overrides), whole)
    assert servers.opened == ["tiny-exchange"], "they stay up, and load"
    assert servers.loaded == ["0.1", "0.2", "1"]
    assert writers(whole) == [{"policy@0"}, {"policy@0.1"}, {"policy@0.2"}]
    assert all(one["policy/ratio_max"] == pytest.approx(1, abs=1e-4) for one in records.values())
    assert not [*(whole / "training").rglob("served-*")], "what they read is gone"
    run_to_end(make_recipe("rl/grpo", [*plain, *SERVED[1:]]), tmp_path / "inside")
    assert final_weights(whole) == final_weights(tmp_path / "inside")
    assert final_weights(whole) != weight_hash(load("tiny-exchange").model)
    killed, left = tmp_path / "killed", "training/policy/iteration-00/served-00000001"
    with pytest.raises(Killed):
        run_to_end(
            make_recipe("rl/grpo", [*overrides, "steps.save_every=9"]),
            killed,
            Killing(1, sampled=2),
        )
    shutil.rmtree(killed / left)
    shutil.copytree(load("tiny-exchange").source, killed / left)  # other weights than those
    with pytest.raises(Killed):
        run_to_end(make_recipe("rl/grpo", overrides), killed, Killing(1))
    del servers.loaded[:]
    run_to_end(make_recipe("rl/grpo", overrides), killed)
    assert servers.loaded == ["0.2", "1"], "the new server began with the version of the checkpoint"
    assert servers.opened[-1] == "served-00000001"
    assert final_weights(killed) == final_weights(whole)
    assert writers(killed) == writers(whole)


@pytest.mark.slow
def test_each_adapter_is_loaded_under_a_name_of_its_own(tmp_path: Path, servers: Servers) -> None:
    overrides = [*informative_overrides(tmp_path), *SERVED, *LORA, "train.learning_rate=1e-2"]
    records = run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    assert servers.opened == ["tiny-exchange"]
    assert servers.loaded == ["0.1", "0.2", "1"]
    assert [name.rpartition("-")[2] for name in servers.adapters] == ["1", "2", "3"]
    assert writers(tmp_path / "run") == [{"policy@0"}, {"policy@0.1"}, {"policy@0.2"}]
    for one in records.values():
        assert one["policy/ratio_min"] == pytest.approx(1, abs=1e-4)
        assert one["policy/ratio_max"] == pytest.approx(1, abs=1e-4)


def test_a_server_that_did_not_get_what_the_trainer_has_ends_the_run(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_checkpoint(tmp_path / "other")

    async def load_other(self: Stub, request: Any) -> JSONResponse:
        self._new = str(other)
        await self._load()
        return JSONResponse({})

    monkeypatch.setattr(Stub, "reload_weights", load_other)
    overrides = [*informative_overrides(tmp_path), *SERVED]
    with pytest.raises(EngineError, match=r"the trainer and http.* have different weights"):
        run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    assert servers.loaded == []


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (LORA[:2], "load at most engine.vllm.lora_rank=0 -> set engine.vllm.lora_rank=4"),
        ((*LORA, "train.lora_targets=[q_proj, lm_head]"), "lora_targets has lm_head"),
    ],
    ids=["rank", "layers"],
)
def test_adapters_for_which_servers_have_no_room_are_refused_before_the_run(
    own: tuple[str, ...], message: str, servers: Servers
) -> None:
    for method, more in (("rl/grpo", ()), ("gap/tiny", ("method=rl",))):
        with pytest.raises(UserError) as caught:
            make_recipe(method, ["engine.kind=vllm", *own, *more]).plan()
        assert message in str(caught.value).replace("\n ", "")
