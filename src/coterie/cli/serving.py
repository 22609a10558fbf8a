"""What ``coterie serve model`` loads, and running the server."""

import socket
from pathlib import Path

import uvicorn

from coterie.engines.serving.app import make_app
from coterie.engines.serving.policies import Policies
from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.models.loading import load
from coterie.recipes.base import Recipe
from coterie.recipes.recorded_run import recorded_run
from coterie.recipes.registry import recipe as recipe_of
from coterie.runs.folder import Run

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept open, longer than most clients keep theirs."""
GRACE = 3
"""Seconds that running requests have to end after Ctrl-C."""


def open_policies(source: str, iteration: int | None, name: str, device: str | None) -> Policies:
    """Load a run's policy (the newest, unless ``iteration`` is given) or a model.

    Raises :class:`UserError` for a policy that the run has not trained, and all that
    :func:`~coterie.models.loading.load` refuses.
    """
    if (Path(source) / "config.yaml").is_file():
        return _of_run(Path(source), iteration, name, device)
    if iteration is not None:
        raise UserError(
            f"--iteration {iteration}: {source} is not a run folder",
            "leave --iteration out, or give a run folder",
        )
    engine = _engine_settings(device)
    loaded = load(source, device=engine.device_name)
    return Policies(
        loaded,
        name=name,
        version="0",
        root=loaded.source,
        max_batch=engine.max_batch,
        timeout=engine.timeout,
    )


def run(policies: Policies, listener: socket.socket, *, allow_loading: bool) -> None:
    """Serve on a listening socket until Ctrl-C (then raised again, when all has ended) or SIGTERM."""
    config = uvicorn.Config(
        make_app(policies, allow_loading=allow_loading),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _of_run(folder: Path, iteration: int | None, name: str, device: str | None) -> Policies:
    words = [] if device is None else [f"engine.device={device}"]
    with recorded_run(folder, recipe_of, words) as (recipe, run):
        version = _version(recipe, run, iteration)
        engine = recipe.settings.engine
        return Policies(
            recipe.load_policy(run, version),
            name=name,
            version=str(version),
            root=str(recipe.policy_path(run, version)),
            max_batch=engine.max_batch,
            timeout=engine.timeout,
        )


def _version(recipe: Recipe, run: Run, wanted: int | None) -> int:
    """The policy to serve; policy i + 1 is what the training of iteration i left."""
    have = recipe.versions(run)
    if wanted is None:
        return have[-1]
    if wanted not in have:
        raise UserError(
            f"{run.folder} has no policy {wanted} (it has {', '.join(map(str, have))}; 0 is the base)",
            "give one of these with --iteration, or run it further",
        )
    return wanted


def _engine_settings(device: str | None) -> EngineSettings:
    try:
        return EngineSettings() if device is None else EngineSettings(device=device)
    except ValueError as error:
        raise UserError(f"--device {device} is none", "use auto, cpu, cuda or cuda:1") from error
