"""``coterie serve model``: serve a run's policy or any model by vLLM or Transformers."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.errors import UserError
from coterie.terminal import notes

if TYPE_CHECKING:
    from coterie.cli.export_model import Export
    from coterie.engines.settings import VLLMSettings

HOST = "127.0.0.1"
GRACE = 10.0
"""Seconds to wait for the server to exit before it is killed."""
POLL_SECONDS = 0.2
console = notes()


def model(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL", help="Run folder; or packaged model, model folder or hub name."
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- OPTION...]", help="Options of `vllm serve` or `transformers serve`."
        ),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(
            help="With a run: the policy at the start of this iteration (0: the base); "
            "default: the newest."
        ),
    ] = None,
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

    from coterie.cli.export_model import export
    from coterie.engines.servers.child import free_port, port_taken
    from coterie.engines.servers.member import absolute
    from coterie.engines.settings import VLLMSettings
    from coterie.models.loading import resolve

    port = port or free_port()
    if port_taken(port):
        raise UserError(f"port {port} of {HOST} is in use", "give another with --port, or 0")
    run = Path(source) if (Path(source) / "config.yaml").is_file() else None
    if iteration is not None and run is None:
        raise UserError(f"--iteration: {source} is not a run folder", "leave --iteration out")
    if run is None:
        settings, weights, merged = VLLMSettings(), absolute(resolve(source)), None
    else:
        settings, weights, merged = _policy(run, iteration)
    name = Path(source).resolve().name if Path(weights).is_absolute() else source
    settings = settings.model_copy(update={"python": python or settings.python})
    vllm = _vllm_command(settings, weights, name, port)
    if vllm is None and not is_serve_available():
        raise UserError(
            "vLLM is not installed, and `transformers serve` lacks packages",
            "pip install 'transformers[serving]', or vLLM (docs/howto/vllm.md)",
        )
    if merged is not None and not merged.out.exists():
        export(merged, None)
    with TemporaryDirectory() as folder:
        words, variables = vllm or (_transformers_command(weights, name, port, folder), {})
        _serve([*words, *(options or ())], variables, folder, name, port)


def _policy(run: Path, iteration: int | None) -> "tuple[VLLMSettings, str, Export | None]":
    """Return a run's settings of vLLM, the folder of its policy, and an export that merges an adapter."""
    from coterie.cli.export_model import Export, exported_version
    from coterie.config.folders import sha256
    from coterie.engines.servers.member import absolute
    from coterie.models.loading import is_adapter, resolve
    from coterie.recipes.base import recorded_run

    with recorded_run(run) as (recipe, opened):
        role = recipe.main_role
        version = exported_version(recipe, opened, role, iteration)
        path = recipe.policy_path(opened, version, role)
    own = recipe.settings.engine.vllm
    one = {"servers": 1, "devices": own.devices[:1], "urls": (), "lora_rank": 0}
    settings = own.model_copy(update=one)
    if not is_adapter(path):
        return settings, absolute(resolve(path)), None
    digest = sha256(Path(path) / "adapter_model.safetensors")[:8]
    out = run.absolute() / "served" / f"{role}-{version}-{digest}"
    return settings, str(out), Export(run, out, merge=True, role=role, iteration=version)


def _vllm_command(
    settings: "VLLMSettings", weights: str, name: str, port: int
) -> tuple[list[str], dict[str, str]] | None:
    """Return the command and environment variables of vLLM, or ``None`` if it is not installed.

    Unlike servers of a pool, this server has the model's sampling defaults, and no routes to load weights.
    """
    from coterie.engines.servers.vllm import VLLMBackend, check_vllm, device_lists, visible_devices

    program = None
    if settings.python is None and importlib.util.find_spec("vllm") is None:
        if (program := shutil.which("vllm")) is None:
            return None
    else:
        check_vllm(settings)
    backend = VLLMBackend(settings, device_lists(settings, visible_devices()))
    words = list(backend.command(weights, name, port))
    words = [program, *words[words.index("serve") :]] if program else words
    variables = {**backend.environment(0), "VLLM_SERVER_DEV_MODE": "0"}
    return [*words, "--generation-config", "auto"], variables


def _transformers_command(weights: str, name: str, port: int, folder: str) -> list[str]:
    if Path(weights).is_absolute():
        (Path(folder) / name).symlink_to(weights)
    words = (sys.executable, "-P", "-m", "transformers.cli.transformers", "serve", name)
    return [*words, "--host", HOST, "--port", str(port)]


def _serve(
    command: Sequence[str], variables: Mapping[str, str], folder: str, name: str, port: int
) -> None:
    """Run a server as a guarded child until Ctrl-C or SIGTERM."""
    from coterie.engines.servers import leash

    guard = (sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(GRACE))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with subprocess.Popen(
        [*guard, *command],
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        env={**os.environ, **variables},
        cwd=folder,
        start_new_session=True,
    ) as child:
        try:
            _wait_until_healthy(child, f"http://{HOST}:{port}")
            _announce(name, f"http://{HOST}:{port}")
            raise _exit_error(child.wait(), "")
        except KeyboardInterrupt:
            console.print("stopped")


def _wait_until_healthy(child: "subprocess.Popen[bytes]", url: str) -> None:
    import httpx2

    while True:
        try:
            if httpx2.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except (httpx2.HTTPError, OSError):
            pass
        if (status := child.poll()) is not None:
            raise _exit_error(status, " before it answered")
        time.sleep(POLL_SECONDS)


def _exit_error(status: int, when: str) -> UserError:
    return UserError(f"the server ended with status {status}{when}", "see its output above")


def _announce(name: str, url: str) -> None:
    """Print the URL to standard output, and an example to standard error."""
    print(url, flush=True)
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
    console.print(f"serving {name} at {url}/v1 (Ctrl-C ends it); try:")
    console.print(
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'",
        soft_wrap=True,
    )
