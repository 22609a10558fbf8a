"""A server that someone else holds: refused if its log-probs are not exact; gone when they are killed."""

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from coterie.engines.pool import vllm_pool
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from tests.vllm import holder
from tests.vllm.conftest import SETTINGS


def test_a_server_whose_logprobs_are_raw_is_refused_and_dies_with_its_holder(
    model: LoadedModel, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", holder.__name__, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as held:
        try:
            assert held.stdout is not None
            url = held.stdout.readline().strip()
            started = psutil.Process(held.pid).children(recursive=True)

            async def use() -> None:
                settings = SETTINGS.model_copy(update={"urls": (url,)})
                async with vllm_pool(
                    "unused", model.renderer, settings, tmp_path, policy="talker", version="0"
                ):
                    pass

            with pytest.raises(UserError, match="log-probs before temperature"):
                asyncio.run(use())
        finally:
            held.kill()
    assert len(started) >= 3  # the guard, the server, its engine
    _, alive = psutil.wait_procs(started, timeout=40)
    assert not alive
