"""``coterie evaluate BENCHMARK policy=...``: one table over policies, and one JSON object.

A policy is a run folder (its newest checkpoint, or all of them), a model, or the URL of an
OpenAI-compatible server. The last line printed is {"benchmark", "rows": [{"policy", "version", "n",
"failed", "score", "score_ci", "tokens"}]}, and ``"usage"`` for an endpoint.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coterie.cli.progress import ConsoleProgress
from coterie.config.resolve import resolve
from coterie.config.settings import key
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.settings import EngineSettings
from coterie.environments.registry import environment
from coterie.errors import UserError
from coterie.models.loading import LoadedModel, load
from coterie.recipes.optima import OptimaISFT
from coterie.recipes.registry import settings as recipe_settings
from coterie.rollout.voices import TextVoice, TokenVoice
from coterie.runs.benchmark import BenchmarkSettings, evaluate, store_name
from coterie.runs.folder import Run, Step, open_run, read_config
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
    model: LoadedModel
    folder: Path
    """Where its store goes."""


def evaluate_benchmark(
    benchmark: str, words: Sequence[str], *, every: bool, console: Console
) -> None:
    """Evaluate, print the table, and one JSON object as the last line."""
    usage: str | None = None
    if urls := _urls(words):
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
        engine = InProcessEngine(
            one.model,
            policy="policy",
            version=str(one.version),
            max_batch=told.engine.max_batch,
            timeout=told.timeout,
        )
        voice = TokenVoice(
            engine, one.model.renderer.render, told.sampling, one.model.context_length
        )
        path = one.folder / store_name(benchmark, _plain(told), weight_hash(one.model.model))
        result = asyncio.run(
            evaluate(
                benchmark,
                told,
                voice,
                path,
                ConsoleProgress(console),
                lambda engine=engine: engine.stats.sampled_tokens,  # type: ignore[misc]
            )
        )
        found.append((one.label, _versioned(result, one.version)))
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
            TextVoice(endpoint, told.sampling),
            path,
            ConsoleProgress(console),
            lambda: endpoint.usage.completion_tokens,
        )
        return [(server.model, found)], str(endpoint.usage)


def _candidates(told: ModelSettings, every: bool) -> Iterator[Candidate]:
    """The policies, one in memory at a time."""
    folder = Path(told.policy)
    if not (folder / "config.yaml").is_file():
        if every:
            raise UserError(
                f"--checkpoints all: {folder} is not a run folder", "give a run folder as policy="
            )
        yield Candidate(told.policy, 0, load(told.policy, device=told.engine.device_name), FOLDER)
        return
    name, stored = read_config(folder)
    words = [f"engine.device={told.engine.device}"]
    recipe = OptimaISFT(recipe_settings(name, words, stored))
    with open_run(folder, name, recipe.settings, write=False) as run:
        have = _versions(recipe, run)
        for version in have if every else have[-1:]:
            label = f"{folder.name} {version}" if version else f"{folder.name} base"
            model = recipe.load_policy(run, version)
            yield Candidate(label, version, model, folder / "evaluations")


def _versions(recipe: OptimaISFT, run: Run) -> list[int]:
    """The policies that a run has: the base, and what each finished training left."""
    count = recipe.settings.iterations
    return [0, *(i + 1 for i in range(count) if run.is_finished(Step(i, "train")))]


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
