"""vLLM servers: their command line and environment, and a client with token ids in, ids and log-probs out.

Callers of the client set timeouts: canceling a call closes its connection, and the server then aborts the request.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx2
import torch
from pydantic import BaseModel, Field, ValidationError

from coterie.config.folders import expanded
from coterie.engines.connections import Address, http_client
from coterie.engines.endpoint import FinalFault, ReportedUsage, TransientFault, request
from coterie.engines.protocol import Completion, Sampling
from coterie.engines.sequence import Decode, ending
from coterie.engines.settings import LORA_RANKS, OptionValue, VLLMSettings
from coterie.errors import UserError
from coterie.models.catalogue import ADAPTER_FILE
from coterie.record.turn import Finish

HOST = "127.0.0.1"
TOKENS = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
DEVICES = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"
FIXED: dict[str, OptionValue] = {
    "enable-prefix-caching": True,
    "enable-scale-out": True,
    "enable-prompt-tokens-details": True,
    "logprobs-mode": "processed_logprobs",
    "generation-config": "vllm",
    "worker-extension-cls": "coterie_worker.Extension",
}
"""Options for exact tokens and log-probs: no sampling defaults of the model, log-probs after temperature, the token
route, and the transfer ``files``."""
INSIDE = Path(__file__).parent / "inside_vllm"
"""Folder in the ``PYTHONPATH`` of servers."""
WITHOUT_DEVICES: dict[str, OptionValue] = {"enable-chunked-prefill": False}
"""Options on CPU. There vLLM 0.32 dies ("CPU Generator does not use offset") when it reads the prompt of a seeded
request in two chunks."""
ADAPTERS = 2
"""Adapters that a server samples with at a time: the newest, and an older one of requests in flight."""
KEPT_ADAPTERS = 8
"""Adapters that a server keeps in memory, because the folder of an older one may be gone."""


def check_vllm(settings: VLLMSettings) -> None:
    """Raise ``UserError`` if vLLM is missing, an argument is managed by coterie, or there are too few devices."""
    if settings.transfer in ("nccl", "ipc") and not (
        find_spec("vllm") and torch.cuda.is_available()
    ):
        raise UserError(
            f"engine.vllm.transfer={settings.transfer} needs a GPU, and vLLM in the interpreter of coterie",
            "pip install vllm here, or set engine.vllm.transfer=disk",
        )
    if settings.urls:
        return
    VLLMBackend(settings, device_lists(settings, visible_devices())).command("", "", {})
    python = _interpreter(settings.python)
    command = [python, "-c", "from importlib.metadata import version; version('vllm')"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UserError(
            f"can't run {python}: {error.strerror}", "correct engine.vllm.python"
        ) from error
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"{python} has no working vLLM: {last_line}",
            "pip install vllm there, or set engine.vllm.python to an interpreter with vLLM",
        )


class VLLMBackend:
    """Command line of ``vllm serve``; ``devices`` has an entry per server, or is empty on CPU."""

    def __init__(self, settings: VLLMSettings, devices: Sequence[str]) -> None:
        self.settings = settings
        self._devices = devices
        # vLLM 0.32 on CPU has a child process for the model that busy-waits for each step, which starved the thread
        # for new requests for seconds on two busy cores (bench/results/rollout-2026-11-21.md).
        self._in_one_process = not devices and settings.tensor_parallel_size == 1

    def command(self, model: str, name: str, listen: Mapping[str, OptionValue]) -> Sequence[str]:
        """Return the command of a server of ``model`` under ``name``; ``listen``: ``uds``, or ``host`` and ``port``."""
        s = self.settings
        backend = s.transfer if s.transfer in ("nccl", "ipc") else "files"
        options: dict[str, OptionValue | None] = {
            **FIXED,
            **dict.fromkeys(("host", "port", "uds")),
            **listen,
            "served-model-name": name,
            "tensor-parallel-size": s.tensor_parallel_size,
            "gpu-memory-utilization": s.gpu_memory_utilization,
            "max-model-len": s.max_model_len,
            "dtype": s.dtype,
            "weight-transfer-config": json.dumps({"backend": backend}),
            "enforce-eager": s.enforce_eager or None,
            **({} if self._devices else WITHOUT_DEVICES),
            **({"distributed-executor-backend": "uni"} if self._in_one_process else {}),
        }
        if s.lora_rank:
            rank = next(size for size in LORA_RANKS if size >= s.lora_rank)
            options |= {"enable-lora": True, "max-lora-rank": rank}
        for key, value in s.arguments.items():
            option = key.replace("_", "-")
            if option in options:
                raise UserError(
                    f"arguments.{key}: coterie sets --{option} itself",
                    "remove the argument, and use the setting of that name if there is one",
                )
            options[option] = value
        if s.lora_rank:
            options = {"max-loras": ADAPTERS, "max-cpu-loras": KEPT_ADAPTERS} | options
        words = [_interpreter(s.python), "-m", "vllm.entrypoints.cli.main", "serve", model]
        for option, setting in options.items():
            if isinstance(setting, bool):
                words.append(f"--{'' if setting else 'no-'}{option}")
            elif setting is not None:
                words += [f"--{option}", str(setting)]
        return [*words, *(("--lora-target-modules", *s.lora_modules) if s.lora_rank else ())]

    def environment(self, index: int) -> Mapping[str, str]:
        """Return the environment of a server: devices or threads, and routes to load weights and adapters."""
        variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if self.settings.lora_rank:
            variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self._devices:
            variables[DEVICES] = self._devices[index]
        if self.settings.transfer == "ipc":
            variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        paths = [str(INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
        if self._in_one_process:
            variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            share = max(1, (torch.get_num_threads() - 1) // self.settings.servers)
            variables[THREADS] = os.environ.get(THREADS) or str(share)
        return variables

    def check_adapter(self, folder: Path) -> None:
        """Raise ``UserError`` if the servers do not support the rank or the layers of an adapter."""
        s = self.settings
        if s.urls:  # the options of external servers are unknown
            return
        config = json.loads((folder / ADAPTER_FILE).read_bytes())
        targets = config["target_modules"]
        if config["r"] > s.lora_rank or not set(targets) <= set(s.lora_modules):
            raise UserError(
                f"the adapter {folder} has rank {config['r']} in {', '.join(sorted(targets))}, but the vLLM "
                f"servers support rank {s.lora_rank} in {', '.join(s.lora_modules)}",
                "set engine.vllm.lora_rank and lora_modules, or merge the adapter into a checkpoint",
            )


def _interpreter(python: str | None) -> str:
    return sys.executable if python is None else str(expanded(python).absolute())


def visible_devices() -> list[str]:
    """Return the names of the CUDA devices that this process may use."""
    if listed := os.environ.get(DEVICES):
        return listed.split(",")
    return [str(index) for index in range(torch.cuda.device_count())]


def device_lists(settings: VLLMSettings, visible: Sequence[str]) -> list[str]:
    """Return the devices of each server; empty on CPU. Raises ``UserError`` if there are too few."""
    if settings.devices or not visible:
        return list(settings.devices)
    size, servers = settings.tensor_parallel_size, settings.servers
    if size * servers > len(visible):
        raise UserError(
            f"{servers} servers with {size} devices each need {size * servers}, but {len(visible)} are available",
            "lower servers or tensor_parallel_size, or set devices",
        )
    return [",".join(visible[i * size : (i + 1) * size]) for i in range(servers)]


class _Logprob(BaseModel):
    logprob: float


class _Logprobs(BaseModel):
    token_logprobs: list[float] | None = None
    content: list[_Logprob] = []

    @property
    def values(self) -> list[float]:
        return self.token_logprobs or [token.logprob for token in self.content]


class _Span(BaseModel):
    version: str
    start: int
    end: int


PromptLogprobs = list[dict[int, _Logprob] | None]


class _Choice(BaseModel):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    weight_versions: list[_Span] | None = None


class _Completions(BaseModel):
    """Reply of the completions route, or of the token route, which has more outside the choice."""

    model: str
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    usage: ReportedUsage
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Usage(ReportedUsage):
    """Tokens of a request, and the label of the weights of each span of sampled tokens, if the server tells it."""

    versions: tuple[tuple[str, int], ...] = ()


class ServedModel(BaseModel):
    """Model or adapter of a server."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[ServedModel]


class _Info(BaseModel):
    version: str = ""
    weight_version: str = ""


Reply = TypeVar("Reply", bound=BaseModel)
Health = Literal["healthy", "silent", "dead"]
"""State of a server: ``dead`` if it says so or nothing listens, ``silent`` without an answer in time."""
CONNECT_SECONDS = 10.0
HEALTH_SECONDS = 5.0


class ServerClient:
    """Client of ``model`` on the server at an address; ``decode`` and ``end_ids`` come from a renderer."""

    def __init__(
        self, address: Address, model: str, decode: Decode, end_ids: frozenset[int]
    ) -> None:
        self.address = address
        self.url = address.url.rstrip("/")
        self.model = model
        self.versioned = False
        """True if the server has vLLM's token route and routes for weight updates (:meth:`probe`)."""
        self.adapter = False
        """True if ``model`` is an adapter, whose name is then the label of its weights."""
        self.vllm = ""
        """Version of vLLM, if the server reports it."""
        self._decode = decode
        self._ends = end_ids
        self._http = http_client(address, httpx2.Timeout(None, connect=CONNECT_SECONDS))

    async def close(self) -> None:
        await self._http.aclose()

    async def complete(
        self, prompt: Sequence[int], seed: int, sampling: Sampling
    ) -> tuple[Completion, Usage]:
        """Sample a completion; its ``versions`` are the server's labels. Raises a ``ServerFault``."""
        parameters = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(self._ends),
            "include_stop_str_in_output": True,
            "logprobs": 0,
        }
        choice, usage = await self._choice(prompt, parameters)
        ids = choice.token_ids or []
        logprobs = choice.logprobs.values if choice.logprobs else []
        counts = {len(ids), len(logprobs), usage.completion_tokens}
        if len(counts) > 1 or not 1 <= len(ids) <= sampling.max_tokens:
            raise TransientFault(
                f"wrong token count: {len(ids)} ids, {len(logprobs)} log-probs and "
                f"{usage.completion_tokens} counted, of up to {sampling.max_tokens}"
            )
        _check_logprobs(logprobs)
        if sampling.temperature == 0:
            logprobs = [0.0] * len(ids)
        if any(token in self._ends for token in ids[:-1]):
            raise TransientFault("the completion continues after an end-of-turn token")
        count, (finish, text, stop) = self._find_end(ids, sampling)
        output, versions = tuple(ids[:count]), tuple(_cut(usage.versions, count))
        logs, cached = tuple(logprobs[:count]), usage.cached_tokens
        return Completion(output, logs, text, finish, seed, cached, stop, versions), usage

    async def score(self, ids: Sequence[int], start: int) -> tuple[list[float], Usage]:
        """Compute the log-probs (nats, temperature 1) of ``ids[start:]``. Raises a ``ServerFault``."""
        parameters = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        choice, usage = await self._choice(ids, parameters)
        positions = choice.prompt_logprobs or []
        pairs = list(zip(ids, positions, strict=False))[start:]
        values = [
            logprobs[token].logprob for token, logprobs in pairs if logprobs and token in logprobs
        ]
        if len(positions) != len(ids) or len(values) != len(ids) - start:
            raise TransientFault(
                f"{len(values)} of {len(ids) - start} log-probs of prompt tokens, and "
                f"{len(positions)} positions for {len(ids)} tokens"
            )
        _check_logprobs(values)
        return values, usage

    async def probe(self) -> None:
        """Find out what the server offers. Raises a ``ServerFault``."""
        replies: dict[str, _Info] = {}
        statuses: dict[str, int] = {}
        for path in ("/version", "/weight_info", TOKENS):
            try:
                replies[path] = _parsed(_Info, await self._send("GET", path, None))
            except FinalFault as fault:
                statuses[path] = fault.status
        self.vllm = replies["/version"].version if "/version" in replies else ""
        has_tokens = statuses.get(TOKENS) == httpx2.codes.METHOD_NOT_ALLOWED
        self.versioned = "/weight_info" in replies and has_tokens

    async def weight_version(self) -> str:
        """Return the label of the server's weights. Raises a ``ServerFault``."""
        return _parsed(_Info, await self._send("GET", "/weight_info", None)).weight_version

    async def set_version(self, version: str) -> None:
        await self.post("/update_weight_version", {"new_version": version})

    async def health(self) -> Health:
        try:
            reply = await self._http.get("/health", timeout=HEALTH_SECONDS)
        except (httpx2.HTTPError, OSError) as error:
            return "dead" if isinstance(error, ConnectionRefusedError) else "silent"
        return "healthy" if reply.status_code == httpx2.codes.OK else "dead"

    async def models(self) -> list[ServedModel]:
        """Return the served models. Raises a ``ServerFault``."""
        return _parsed(_Models, await self._send("GET", "/v1/models", None)).data

    async def post(self, path: str, body: Mapping[str, Any] | None) -> None:
        await self._send("POST", path, body)

    def _find_end(self, ids: list[int], sampling: Sampling) -> tuple[int, tuple[Finish, str, str]]:
        """Return the number of ids of a completion, and its finish reason, text and stop string."""
        # A server decodes token by token and may miss a stop string of the whole text; tokens after it are dropped.
        for count in range(1 if sampling.stop else len(ids), len(ids) + 1):
            if end := ending(ids[:count], sampling, self._ends, self._decode):
                return count, end
        raise TransientFault(
            f"wrong token count: {len(ids)} of up to {sampling.max_tokens} tokens, without an "
            "end-of-turn token or stop string"
        )

    async def _choice(
        self, prompt: Sequence[int], parameters: Mapping[str, Any]
    ) -> tuple[_Choice, Usage]:
        """Return the answer of the token route, or of the completions route of servers without versions."""
        model, adapter = self.model, self.adapter
        body: dict[str, Any] = {"model": model, "return_token_ids": True}
        parameters = {**parameters, "skip_special_tokens": False}
        if self.versioned:
            body |= {"token_ids": list(prompt), "sampling_params": parameters}
        else:
            body |= {"prompt": list(prompt), **parameters}
        path = TOKENS if self.versioned else COMPLETIONS
        reply = _parsed(_Completions, await self._send("POST", path, body))
        (choice,) = reply.choices
        if reply.model != model:
            raise TransientFault(f"asked {model}, but {reply.model} answered")
        choice.prompt_logprobs = choice.prompt_logprobs or reply.prompt_logprobs
        same = (choice.prompt_token_ids or reply.prompt_token_ids) in (None, list(prompt))
        if not same or reply.usage.prompt_tokens != len(prompt):
            raise TransientFault(
                f"the server answered another prompt: it has {len(prompt)} tokens, but the server reports "
                f"{reply.usage.prompt_tokens}"
            )
        spans = tuple(
            (span.version, span.end - span.start) for span in choice.weight_versions or ()
        )
        if adapter:
            spans = ((model, reply.usage.completion_tokens),)
        return choice, Usage(**dict(reply.usage), versions=spans)

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> httpx2.Response:
        return await request(self._http, method, path, body, f"{self.url}{path}: ")


def _cut(spans: Sequence[tuple[str, int]], count: int) -> Iterator[tuple[str, int]]:
    """Yield the spans of the first ``count`` tokens."""
    for label, size in spans:
        if count > 0:
            yield label, min(size, count)
        count -= size


def _check_logprobs(logprobs: Sequence[float]) -> None:
    if not all(math.isfinite(logprob) and logprob <= 0 for logprob in logprobs):
        raise TransientFault("some log-probs are not finite, or above 0")


def _parsed(reply_type: type[Reply], response: httpx2.Response) -> Reply:
    try:
        return reply_type.model_validate_json(response.content)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, detail["loc"]))
        raise TransientFault(
            f"{response.url} sent an invalid reply: {where} {detail['msg']}: {response.text[:200]!r}"
        ) from error
