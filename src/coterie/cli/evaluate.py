"""``coterie evaluate BENCHMARK policy=...``: one table over policies, and one JSON object.

A policy is a run folder (its newest checkpoint, or all of them), a model, or the URL of an
OpenAI-compatible server. The last line printed is {"benchmark", "rows": [{"policy", "version", "n",
"failed", "score", "score_ci", "tokens"}]}, and ``"usage"`` for an endpoint.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coterie.cli.progress import ConsoleProgress
from coterie.config.resolve import resolve
from coterie.config.settings import key
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.run_engines import RunEngines
from coterie.engines.settings import EngineSettings
from coterie.environments.registry import environment
from coterie.errors import UserError
from coterie.models.loading import LoadedModel, load
from coterie.models.loading import resolve as resolve_model
from coterie.recipes.optima import Optima
from coterie.recipes.registry import settings as recipe_settings
from coterie.rollout.voices import TextVoice, TokenVoice
from coterie.runs.benchmark import BenchmarkSettings, evaluate, store_name
from coterie.runs.folder import open_run, read_config
from coterie.runs.held_out import Evaluation
from coterie.training.checkpoint import weight_hash

FOLDER = Path("runs/evaluations")
"""Where evaluations of models and endpoints go; those of a run go into its folder."""


class ModelSettings(BenchmarkSettings):
    """A benchmark and a policy whose weights we have."""

    policy: str = key(..., "A run folder, or a model's name or folder.")
    engine: EngineSettings = EngineSettings()


class ServerSettings(BenchmarkSettings):
    """A benchmark and a policy that is only talked to."""

    policy: str = key(..., "The URL of an OpenAI-compatible server.")
    endpoint: EndpointSettings


@dataclass(frozen=True, slots=True)
class Candidate:
    """One policy to evaluate."""

    label: str
    version: int
    base: str
    """The model that it is, or was trained from."""
    path: Path | str
    """Its weights, or adapter."""
    load: Callable[[], LoadedModel]
    folder: Path
    """Where its store goes."""


def evaluate_benchmark(
    benchmark: str, words: Sequence[str], *, every: bool, console: Console
) -> None:
    """Evaluate, print the table, and one JSON object as the last line."""
    usage: str | None = None
    if urls := _urls(words):
        if every:
            raise UserError("--checkpoints all: a server has none", "give a run folder as policy=")
        server = resolve(ServerSettings, [{"endpoint": {"url": urls[-1]}}], words)
        rows, usage = asyncio.run(_by_endpoint(benchmark, server, console))
    else:
        model = resolve(ModelSettings, [], words)
        environment(benchmark, model.data).tasks("heldout", 1, model.seed)
        rows = _by_models(benchmark, model, every, console)
    Console().print(_table(benchmark, rows))
    shown = [
        {
            "policy": label,
            "version": found.version,
            "n": found.n,
            "failed": found.failed,
            "score": round(found.score, 4),
            "score_ci": [round(found.low, 4), round(found.high, 4)],
            "tokens": round(found.tokens, 2),
        }
        for label, found in rows
    ]
    result = {"benchmark": benchmark, "rows": shown}
    print(json.dumps(result | ({} if usage is None else {"usage": usage})))


def _by_models(
    benchmark: str, told: ModelSettings, every: bool, console: Console
) -> list[tuple[str, Evaluation]]:
    found = []
    for one in _candidates(told, every):
        engines = RunEngines(told.engine, one.base, one.folder / "servers")
        try:
            result = engines.run(_by_engine(benchmark, told, one, engines, console))
        finally:
            engines.close()
        found.append((one.label, _versioned(result, one.version)))
    return found


async def _by_engine(
    benchmark: str, told: ModelSettings, one: Candidate, engines: RunEngines, console: Console
) -> Evaluation:
    weights = weight_hash(Path(one.path)) if Path(one.path).is_dir() else str(one.path)
    path = one.folder / store_name(benchmark, _plain(told), f"{weights} {told.engine.identity()}")
    policy = await engines.speak(one.version, one.path, one.load)
    engine = policy.engine
    sampling = told.sampling(told.engine.timeout)
    voice = TokenVoice(engine, policy.renderer.render, sampling, policy.context_length)
    progress = ConsoleProgress(console)
    found = await evaluate(
        benchmark, told, voice, path, progress, lambda: engine.stats.sampled_tokens
    )
    if not engine.stats.requests:
        console.print(f"{one.label}: done before, read from {path}")
    return found


async def _by_endpoint(
    benchmark: str, told: ServerSettings, console: Console
) -> tuple[list[tuple[str, Evaluation]], str]:
    server = told.endpoint
    async with Endpoint(server) as endpoint:
        path = FOLDER / store_name(benchmark, _plain(told), f"{server.url} {server.model}")
        found = await evaluate(
            benchmark,
            told,
            TextVoice(endpoint, told.sampling(server.timeout)),
            path,
            ConsoleProgress(console),
            lambda: endpoint.usage.completion_tokens,
            again=True,
        )
        return [(server.model, found)], str(endpoint.usage)


def _candidates(told: ModelSettings, every: bool) -> Iterator[Candidate]:
    folder = Path(told.policy)
    if not (folder / "config.yaml").is_file():
        if every:
            raise UserError(
                f"--checkpoints all: {folder} is not a run folder", "give a run folder as policy="
            )
        source = resolve_model(told.policy)
        device = told.engine.device_name
        yield Candidate(told.policy, 0, source, source, lambda: load(source, device=device), FOLDER)
        return
    name, stored = read_config(folder)
    words = [f"engine.device={told.engine.device}"]
    recipe = Optima(recipe_settings(name, words, stored))
    with open_run(folder, name, recipe.settings, write=False) as run:
        have = recipe.versions(run)
        for version in have if every else have[-1:]:
            path = recipe.policy_path(run, version)
            yield Candidate(
                f"{folder.name} {version or 'base'}",
                version,
                recipe.settings.model,
                path if version else resolve_model(path),
                partial(recipe.load_policy, run, version),
                folder / "evaluations",
            )


def _urls(words: Sequence[str]) -> list[str]:
    """The address that ``policy=`` gives, if it is one."""
    found = [word.partition("=")[2] for word in words if word.startswith("policy=")]
    return [url for url in found if url.startswith(("http://", "https://"))]


def _plain(told: BenchmarkSettings) -> BenchmarkSettings:
    """The settings that figures depend on, whatever the policy."""
    names = BenchmarkSettings.model_fields
    return BenchmarkSettings(**{name: getattr(told, name) for name in names})


def _versioned(found: Evaluation, version: int) -> Evaluation:
    return Evaluation(
        version, found.n, found.failed, found.score, found.low, found.high, found.tokens
    )


def _table(benchmark: str, rows: Sequence[tuple[str, Evaluation]]) -> Table:
    table = Table(title=f"{benchmark}, held-out tasks", box=None)
    for title in ("policy", "score", "95% interval", "tokens", "n", "failed"):
        table.add_column(title, justify="left" if title == "policy" else "right")
    for label, found in rows:
        table.add_row(
            label,
            f"{found.score:.3f}",
            f"{found.low:.3f} to {found.high:.3f}",
            f"{found.tokens:.1f}",
            f"{found.n}",
            f"{found.failed}",
        )
    return table
