"""``coterie doctor``: checks of this machine."""

import asyncio
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from coterie.cli.plugin_check import check_all
from coterie.engines.endpoint import configured
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling
from coterie.errors import UserError
from coterie.models.adapters import NUMBA_ERROR
from coterie.models.loading import LoadedModel, load, load_renderer
from coterie.record.store import Store
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings

PACKAGES = ("torch", "transformers", "accelerate", "peft", "pydantic")
TRACKERS = ("tensorboard", "trackio", "wandb", "swanlab")


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    what: str
    ok: bool
    result: str
    optional: bool = False


def tool_findings(model: str) -> tuple[str, ...]:
    """Describe the tool support of a model's chat template. Raises ``UserError``."""
    renderer, _ = load_renderer(model)
    native = renderer.tools.syntax is not None and renderer.tools.shows_tools
    return (*renderer.tools.findings, *(() if native else ("Use tools with tools.calls=tags.",)))


def checks() -> list[Check]:
    """Check Python, packages, memory, disk, GPU, store, sandbox, a packaged model, plug-ins and keys."""
    version = sys.version_info[:2]
    results = [
        Check("Python 3.11 to 3.13", (3, 11) <= version <= (3, 13), platform.python_version()),
        *(Check(f"package {name}", True, importlib.metadata.version(name)) for name in PACKAGES),
        Check("CPU", True, f"{psutil.cpu_count()} cores, torch uses {torch.get_num_threads()}"),
        Check("memory", True, f"{psutil.virtual_memory().available / 2**30:.1f} GiB free"),
        Check("disk", True, f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free here"),
        _gpu(),
        _loops(),
        _store(),
        _sandbox(),
        *_model("tiny-exchange"),
        *(
            Check(f"plug-in: {name}", not problem, problem or "can be imported", optional=True)
            for name, problem in check_all()
        ),
    ]
    for name in TRACKERS:
        is_installed = importlib.util.find_spec(name) is not None
        text = "installed" if is_installed else f"pip install -e '.[{name}]'"
        results.append(Check(f"tracker {name}", is_installed, text, optional=True))
    for name, is_set in configured(Path()).items():
        results.append(Check(f"key {name}", is_set, "set" if is_set else "not set", optional=True))
    return results


def _gpu() -> Check:
    if torch.cuda.is_available():
        return Check("GPU", True, torch.cuda.get_device_name(), optional=True)
    return Check("GPU", False, "none: everything runs on the CPU", optional=True)


def _loops() -> Check:
    what = "compiled loops for the CPU"
    if not NUMBA_ERROR:
        return Check(what, True, f"numba {importlib.metadata.version('numba')}", optional=True)
    problem = (
        f"numba can't be imported ({NUMBA_ERROR}): models run by Transformers, which is slower; pip install numba, "
        "in a version of Python that numba supports"
    )
    return Check(what, False, problem, optional=True)


def _store() -> Check:
    try:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            Store.open(Path(folder) / "store.sqlite").close()
    except (UserError, OSError) as error:
        return Check("run folders here", False, str(error))
    return Check("run folders here", True, "a store can be created and locked")


def _sandbox() -> Check:
    async def start() -> None:
        async with Sandbox(SandboxSettings(workers=1)):
            pass

    what = "sandbox for model code"
    try:
        asyncio.run(start())
    except UserError as error:
        return Check(what, False, str(error), optional=True)
    return Check(what, True, "starts and runs an answer", optional=True)


def _model(name: str) -> list[Check]:
    """Check that a packaged model loads, and gives equal samples alone and in a batch."""
    try:
        loaded = load(name, device="cpu")
    except UserError as error:
        return [Check(f"model {name}", False, error.what)]
    weights = sum(parameter.numel() for parameter in loaded.model.parameters())
    prompts = [range(3, 3 + length) for length in (5, 40, 41, 70, 100)]
    together, *alone = (asyncio.run(_sample(loaded, batch)) for batch in (prompts, *zip(prompts)))
    same = together == [completion for (completion,) in alone]
    result = (
        "bitwise"
        if same
        else "NOT bitwise: a resumed run equals an uninterrupted one in rounding only"
    )
    return [
        Check(f"model {name}", True, f"{weights:,} weights"),
        Check(
            "equal samples alone and in a batch",
            same,
            f"{result} (Llama and Qwen2 in float32 on CPU; other models within rounding)",
            optional=bool(NUMBA_ERROR),
        ),
    ]


async def _sample(loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> list[list[Completion]]:
    engine = InProcessEngine(loaded, policy="doctor", version="0")
    sampling = Sampling(max_tokens=8)
    return await asyncio.gather(*(engine.sample(prompt, [0], sampling) for prompt in prompts))
