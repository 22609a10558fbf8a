"""``coterie serve``: a model behind an OpenAI-compatible server, and tools behind an MCP server."""

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.errors import UserError
from coterie.terminal import Source, Version, notes

if TYPE_CHECKING:
    from coterie.engines.settings import VLLMSettings

HOST = "127.0.0.1"
GRACE = 10.0
"""Seconds to wait for the server to exit before it is killed."""
POLL_SECONDS = 0.2
IGNORED = (
    "vLLM is not installed, so this is `transformers serve`: it ignores n, logprobs, max_completion_tokens, "
    "tool_choice and response_format, parses tool calls of few models, and answers one request after the other."
)
console = notes()
app = typer.Typer(no_args_is_help=True, help="Serve models and tools over HTTP.")


@app.command()
def model(
    source: Source,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- OPTION...]", help="Options of `vllm serve` or `transformers serve`."
        ),
    ] = None,
    iteration: Version = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free port.")
    ] = 8000,
    python: Annotated[
        str | None,
        typer.Option(
            help="Python interpreter with vLLM; default: the run's engine.vllm.python, this one, or `vllm` on PATH."
        ),
    ] = None,
) -> None:
    """Serve a run's policy or any model by OpenAI's protocol, until Ctrl-C.

    Runs `vllm serve` if vLLM is installed, else `transformers serve`. A LoRA adapter is first merged into its base,
    in the folder `served` of the run.

    Examples:

        coterie serve model runs/optima-isft

        coterie serve model tiny-exchange --port 8001

        coterie serve model Qwen/Qwen3-4B --python vllm-env/bin/python -- --max-model-len 4096
    """
    from transformers.utils.import_utils import is_serve_available

    from coterie.engines.server import absolute
    from coterie.engines.settings import VLLMSettings
    from coterie.engines.vllm import INSIDE
    from coterie.models.loading import resolve
    from coterie.runs.run import find_run

    with listener_on(port) as probe:
        port = probe.getsockname()[1]
    run_and_step = find_run(source)
    if iteration is None and run_and_step is None:
        settings, weights, merge = VLLMSettings(), absolute(resolve(source)), None
    else:
        settings, weights, merge = _policy(*(run_and_step or (Path(source), None)), iteration)
    # Transformers would read a revision after @.
    name = Path(source).resolve().name.replace("@", "-") if Path(weights).is_absolute() else source
    settings = settings.model_copy(update={"python": python or settings.python})
    vllm = _vllm_command(settings, weights, name, port)
    if vllm is None and not is_serve_available():
        problem = "vLLM is not installed, and `transformers serve` lacks packages"
        raise UserError(problem, "pip install 'transformers[serving]' or vLLM (docs/howto/vllm.md)")
    if merge is not None and not Path(weights).exists():
        merge()
    with TemporaryDirectory() as folder:
        if vllm is not None:
            words, variables = vllm
        else:
            if Path(weights).is_absolute():
                _link(Path(weights), Path(folder) / name)
            words = [sys.executable, "-P", str(INSIDE / "coterie_guard.py"), "serve", name]
            words, variables = [*words, "--host", HOST, "--port", str(port)], {}
            console.print(IGNORED)
        _serve([*words, *(options or ())], variables, folder, name, f"http://{HOST}:{port}")


def _link(weights: Path, folder: Path) -> None:
    """Make a folder of links to a model, whose generation settings sample: else `transformers serve` is greedy."""
    folder.mkdir()
    for file in weights.iterdir():
        (folder / file.name).symlink_to(file)
    settings = folder / "generation_config.json"
    values = json.loads(settings.read_bytes()) if settings.is_file() else {}
    settings.unlink(missing_ok=True)
    settings.write_text(json.dumps({"top_k": 0, **values, "do_sample": True}), encoding="utf-8")


def listener_on(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        fix = "stop the program that uses it, or take a free port with --port 0"
        raise UserError(f"can't listen on port {port}: {error.strerror}", fix) from error


def _policy(
    run: Path, step: int | None, iteration: int | None
) -> "tuple[VLLMSettings, str, Callable[[], None] | None]":
    """Return a run's settings of vLLM, the folder of its policy, and a function that merges an adapter into it."""
    from coterie.cli.export import export_model
    from coterie.config.folders import sha256
    from coterie.engines.server import absolute
    from coterie.models.loading import is_adapter, resolve
    from coterie.recipes.base import recorded_run

    with recorded_run(run) as (recipe, opened):
        role = recipe.main_role
        version = recipe.find_version(opened, role, iteration, step, trained=True)
        path = recipe.models(opened).path(role, version)
    pool = recipe.settings.engine.vllm
    changes = {"servers": 1, "devices": pool.devices[:1], "urls": (), "lora_rank": 0}
    settings = pool.model_copy(update=changes)
    if not is_adapter(path):
        return settings, absolute(resolve(path)), None
    digest = sha256(Path(path) / "adapter_model.safetensors")[:8]
    out = run.absolute() / "served" / f"{role}-{digest}"
    export = partial(export_model, run, out, merge=True, role=role)
    return settings, str(out), partial(export, iteration=iteration, step=step)


def _vllm_command(
    settings: "VLLMSettings", weights: str, name: str, port: int
) -> tuple[list[str], dict[str, str]] | None:
    """Return the command and environment variables of vLLM, or ``None`` if it is not installed.

    Unlike servers of a pool, this server has the model's sampling defaults, and no routes to load weights.
    """
    from coterie.engines.vllm import VLLMBackend, check_vllm, device_lists, visible_devices

    program = None
    if settings.python is None and importlib.util.find_spec("vllm") is None:
        if (program := shutil.which("vllm")) is None:
            return None
    else:
        check_vllm(settings)
    backend = VLLMBackend(settings, device_lists(settings, visible_devices()))
    words = list(backend.command(weights, name, {"host": HOST, "port": port}))
    words = [program, *words[words.index("serve") :]] if program else words
    variables = {**backend.environment(0), "VLLM_SERVER_DEV_MODE": "0"}
    guard = ("--middleware", "coterie_guard.Guard")
    return [*words, *guard, "--generation-config", "auto"], variables


def _serve(
    command: Sequence[str], variables: Mapping[str, str], folder: str, name: str, url: str
) -> None:
    """Run a server as a guarded child until Ctrl-C or SIGTERM. Print its URL and an example when it answers."""
    import httpx2

    from coterie.engines.child_guard import guarded

    def answers() -> bool:
        with contextlib.suppress(httpx2.HTTPError, OSError):
            return httpx2.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
        return False

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with subprocess.Popen(
        guarded(command, GRACE),
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        env={**os.environ, **variables},
        cwd=folder,
        start_new_session=True,
    ) as child:
        try:
            while child.poll() is None and not answers():
                time.sleep(POLL_SECONDS)
            if child.returncode is None:
                print(url, flush=True)
                message = {"role": "user", "content": "Hello"}
                body = json.dumps({"model": name, "messages": [message], "max_tokens": 64})
                console.print(
                    f"serving {name} at {url}/v1 (Ctrl-C ends it); try:\n  curl {url}/v1/chat/completions "
                    f"-H 'Content-Type: application/json' -d '{body}'",
                    soft_wrap=True,
                )
            status = child.wait()
            raise UserError(f"the server ended with status {status}", "see its output above")
        except KeyboardInterrupt:
            console.print("stopped")


@app.command()
def tools(
    config: Annotated[Path, typer.Option(help="YAML file of tools, as for `tools.config`.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free port.")] = 8008,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve one client on standard input and output.")
    ] = False,
) -> None:
    """Serve the tools of a file as an MCP server, on 127.0.0.1 under /mcp or on standard input and output.

    docs/howto/tools.md lists the keys of each tool.

    Example:

        coterie serve tools --config tools.yaml
    """
    from coterie.tools.mcp import ToolServer
    from coterie.tools.registry import sources_in

    with contextlib.suppress(KeyboardInterrupt):
        if stdio:
            asyncio.run(ToolServer(sources_in(config)).talk())
            return
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.closing(listener_on(port)) as listener:
            url = f"http://{HOST}:{listener.getsockname()[1]}/mcp"
            server = ToolServer(sources_in(config))

            def ready() -> None:
                print(url, flush=True)
                console.print(f"serving {config} at {url} (Ctrl-C ends it)")

            asyncio.run(server.listen(listener, ready))
    console.print("stopped")
