"""``coterie doctor``: checks of this machine, and of installed plug-ins."""

import asyncio
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coterie.config.plugins import Kind, find, installed, settings_type_of
from coterie.errors import UserError

PACKAGES = ("torch", "transformers", "accelerate", "peft", "pydantic")
TRACKERS = ("tensorboard", "trackio", "wandb", "swanlab")


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    what: str
    ok: bool
    result: str
    optional: bool = False


TAGS = "Use tools with tools.calls=tags, or environment.calls=tags."


def tool_findings(model: str) -> tuple[str, ...]:
    """Describe the tool support of a model's chat template. Raises ``UserError``."""
    from coterie.models.loading import load_renderer

    renderer, _ = load_renderer(model)
    native = renderer.tools.syntax is not None and renderer.tools.shows_tools
    return (*renderer.tools.findings, *(() if native else (TAGS,)))


def checks() -> Iterator[Check]:
    """Check Python, packages, memory, disk, GPU, store, sandbox, a packaged model, plug-ins and keys."""
    import psutil
    import torch

    from coterie.engines.endpoint import configured
    from coterie.models.adapters import NUMBA_ERROR

    version = sys.version_info[:2]
    yield Check("Python 3.11 to 3.13", (3, 11) <= version <= (3, 13), platform.python_version())
    versions = (f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    yield Check("packages", True, ", ".join(versions))
    yield Check("CPU", True, f"{psutil.cpu_count()} cores, torch uses {torch.get_num_threads()}")
    yield Check("memory", True, f"{psutil.virtual_memory().available / 2**30:.1f} GiB free")
    yield Check("disk", True, f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free here")
    gpu = torch.cuda.is_available()
    text = torch.cuda.get_device_name() if gpu else "none: everything runs on the CPU"
    yield Check("GPU", gpu, text, optional=True)
    text = (
        f"numba can't be imported ({NUMBA_ERROR}): models run by Transformers, which is slower; pip install numba, "
        "in a version of Python that numba supports"
        if NUMBA_ERROR
        else f"numba {importlib.metadata.version('numba')}"
    )
    yield Check("compiled loops for the CPU", not NUMBA_ERROR, text, optional=True)
    yield _store()
    yield _sandbox()
    yield _renderer()
    yield from _model("tiny-exchange")
    yield from check_plugins()
    for name in TRACKERS:
        is_installed = importlib.util.find_spec(name) is not None
        text = "installed" if is_installed else f"pip install -e '.[{name}]'"
        yield Check(f"tracker {name}", is_installed, text, optional=True)
    for name, is_set in configured(Path()).items():
        yield Check(f"key {name}", is_set, "set" if is_set else "not set", optional=True)


def _store() -> Check:
    from coterie.record.store import Store

    try:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            Store.open(Path(folder) / "store.sqlite").close()
    except (UserError, OSError) as error:
        return Check("run folders here", False, str(error))
    return Check("run folders here", True, "a store can be created and locked")


def _sandbox() -> Check:
    from coterie.tools.sandbox.pool import Sandbox
    from coterie.tools.sandbox.worker import SandboxSettings

    async def start() -> None:
        async with Sandbox(SandboxSettings(workers=1)):
            pass

    name = "sandbox for model code"
    try:
        asyncio.run(start())
    except UserError as error:
        return Check(name, False, str(error), optional=True)
    return Check(name, True, "starts and runs an answer", optional=True)


def _renderer() -> Check:
    from coterie.tools.render import Renderer, RenderSettings, missing_limits
    from coterie.tools.sandbox.worker import find_bubblewrap

    async def start() -> str:
        async with Renderer(RenderSettings(pages=1)) as renderer:
            missing = (f"; without {limit}: {why}" for limit, why in missing_limits().items())
            version = f"{renderer.chromium} {renderer.version}"
            return "".join([f"{version} in {find_bubblewrap('')}", *missing])

    name = "renderer of web pages"
    try:
        return Check(name, True, asyncio.run(start()), optional=True)
    except UserError as error:
        return Check(name, False, str(error), optional=True)


def _model(name: str) -> Iterator[Check]:
    """Check that a packaged model loads, and gives equal samples alone and in a batch."""
    from coterie.engines.inprocess import InProcessEngine
    from coterie.engines.protocol import Completion, Sampling
    from coterie.models.adapters import NUMBA_ERROR
    from coterie.models.loading import load

    try:
        loaded = load(name, device="cpu")
    except UserError as error:
        yield Check(f"model {name}", False, error.what)
        return

    async def sample(prompts: Sequence[Sequence[int]]) -> list[list[Completion]]:
        engine, sampling = InProcessEngine(loaded), Sampling(max_tokens=8)
        return await asyncio.gather(*(engine.sample(prompt, [0], sampling) for prompt in prompts))

    weights = sum(parameter.numel() for parameter in loaded.model.parameters())
    yield Check(f"model {name}", True, f"{weights:,} weights")
    prompts = [range(3, 3 + length) for length in (5, 40, 41, 70, 100)]
    together, *alone = (asyncio.run(sample(batch)) for batch in (prompts, *zip(prompts)))
    same = together == [completion for (completion,) in alone]
    result = "bitwise"
    if not same:
        result = "NOT bitwise: a resumed run equals an uninterrupted one in rounding only"
    limits = "Llama and Qwen2 in float32 on CPU; other models within rounding"
    title = "equal samples alone and in a batch"
    yield Check(title, same, f"{result} ({limits})", optional=bool(NUMBA_ERROR))


def check_plugins() -> Iterator[Check]:
    """Import each installed plug-in."""
    from coterie.datasets.load import dataset_type
    from coterie.environments.registry import ENVIRONMENTS
    from coterie.environments.settings import EnvironmentSettings
    from coterie.recipes.registry import plugin as recipe_plugin
    from coterie.rewards.dialogue_reward import load_terms
    from coterie.tools.registry import TOOLS

    loaders: dict[str, Callable[[str], object]] = {
        "environment": lambda name: settings_type_of(find(ENVIRONMENTS, name), EnvironmentSettings),
        "dataset": dataset_type,
        "recipe": recipe_plugin,
        "reward": lambda name: load_terms((name,), ()),
        "tool": partial(find, TOOLS),
    }
    for kind, load in loaders.items():
        for name in installed(Kind(kind, {})):
            problem = ""
            try:
                load(name)
            except UserError as error:
                problem = error.what
            text = problem or "can be imported"
            yield Check(f"plug-in: {kind} {name}", not problem, text, optional=True)
