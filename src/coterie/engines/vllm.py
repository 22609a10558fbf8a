"""vLLM servers: their command line and environment, and a client with token ids in, ids and log-probs out.

Callers of the client set timeouts: canceling a call closes its connection, and the server then aborts the request.
"""

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import torch
from pydantic import BaseModel, Field, ValidationError

from coterie.config.folders import expanded
from coterie.engines.endpoint import ReportedUsage, TransientFault, request
from coterie.engines.protocol import Completion, Sampling
from coterie.engines.sequence import Decode, ending
from coterie.engines.settings import LORA_RANKS, OptionValue, VLLMSettings
from coterie.errors import UserError
from coterie.models.loading import ADAPTER_FILE
from coterie.record.turn import Finish

HOST = "127.0.0.1"
DEVICES = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"
FIXED: dict[str, OptionValue] = {
    "host": HOST,
    "enable-prefix-caching": True,
    "enable-prompt-tokens-details": True,
    "logprobs-mode": "processed_logprobs",
    "generation-config": "vllm",
}
"""Options for exact tokens and log-probs: no sampling defaults of the model, log-probs after temperature."""
INSIDE = Path(__file__).parent / "inside_vllm"
"""Folder in the ``PYTHONPATH`` of servers without devices."""
WITHOUT_DEVICES: dict[str, OptionValue] = {
    "enable-chunked-prefill": False,
    "worker-extension-cls": "coterie_worker.WholeReload",
}
"""Options on CPU. There vLLM 0.32 dies ("CPU Generator does not use offset") when it reads the prompt of a seeded
request in two chunks, and does not reload a tied output layer without the extension."""


def check_vllm(settings: VLLMSettings) -> None:
    """Raise ``UserError`` if vLLM is missing, an argument is managed by coterie, or there are too few devices."""
    if settings.urls:
        return
    VLLMBackend(settings, device_lists(settings, visible_devices())).command("", "", 0)
    python = _interpreter(settings.python)
    command = [python, "-c", "from importlib.metadata import version; version('vllm')"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UserError(
            f"can't run {python}: {error.strerror}", "correct engine.vllm.python"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"{python} has no working vLLM: {last}",
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

    def command(self, model: str, name: str, port: int) -> Sequence[str]:
        s = self.settings
        options: dict[str, OptionValue | None] = {
            **FIXED,
            "port": port,
            "served-model-name": name,
            "tensor-parallel-size": s.tensor_parallel_size,
            "gpu-memory-utilization": s.gpu_memory_utilization,
            "max-model-len": s.max_model_len,
            "dtype": s.dtype,
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
        else:
            paths = [str(INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
            variables["PYTHONPATH"] = os.pathsep.join(paths)
        if self._in_one_process:
            variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            share = max(1, (torch.get_num_threads() - 1) // self.settings.servers)
            variables[THREADS] = os.environ.get(THREADS) or str(share)
        return variables

    async def reload(self, client: "ServerClient", path: str) -> None:
        """Load other weights into the running model. Raises a ``ServerFault``."""
        whole = not self._devices and not self.settings.urls
        method = "reload_all_weights" if whole else "reload_weights"
        call = {"method": method, "kwargs": {"weights_path": path}}
        await client.post("/collective_rpc", call)

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


class _Logprobs(BaseModel):
    token_logprobs: list[float]


class _Logprob(BaseModel):
    logprob: float


class _Choice(BaseModel):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[int, _Logprob] | None] | None = None


class _Completions(BaseModel):
    model: str
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    usage: ReportedUsage


class ServedModel(BaseModel):
    """Model or adapter of a server."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[ServedModel]


class _CacheReset(BaseModel):
    success: bool = True


Reply = TypeVar("Reply", bound=BaseModel)
CONNECT_SECONDS = 10.0
HEALTH_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""Idle time after which a connection is closed, shorter than on servers (uvicorn: 5 s)."""
POOLS = 16
"""Connection pools of a client. A pool scans all its connections at the start and end of every request, which took two
thirds of this process's time with 384 dialogues in one pool (bench/results/rollout-2026-11-21.md)."""


class ServerClient:
    """Client of ``model`` on the server at ``url``; ``decode`` and ``end_ids`` are those of a renderer."""

    def __init__(self, url: str, model: str, decode: Decode, end_ids: frozenset[int]) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self._decode = decode
        self._ends = end_ids
        limits = httpx2.Limits(keepalive_expiry=IDLE_SECONDS)
        verify = httpx2.create_ssl_context(trust_env=False)
        self._pools = [
            httpx2.AsyncClient(
                base_url=self.url,
                timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
                limits=limits,
                verify=verify,
                trust_env=False,
            )
            for _ in range(POOLS)
        ]
        self._next = itertools.cycle(self._pools)

    async def close(self) -> None:
        for pool in self._pools:
            await pool.aclose()

    async def complete(
        self, prompt: Sequence[int], seed: int, sampling: Sampling
    ) -> tuple[Completion, ReportedUsage]:
        """Sample a completion. Raises a ``ServerFault``."""
        body = {
            **self._request(prompt, sampling.max_tokens),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(self._ends),
            "include_stop_str_in_output": True,
            "logprobs": 0,
        }
        choice, usage = await self._choice(body, prompt)
        ids = choice.token_ids or []
        logprobs = choice.logprobs.token_logprobs if choice.logprobs else []
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
        output, cached = tuple(ids[:count]), usage.cached_tokens
        return Completion(output, tuple(logprobs[:count]), text, finish, seed, cached, stop), usage

    async def score(self, ids: Sequence[int], start: int) -> tuple[list[float], ReportedUsage]:
        """Compute the log-probs (nats, temperature 1) of ``ids[start:]``. Raises a ``ServerFault``."""
        body = {**self._request(ids, 1), "temperature": 1.0, "prompt_logprobs": 0}
        choice, usage = await self._choice(body, ids)
        positions = choice.prompt_logprobs or []
        pairs = list(zip(ids, positions, strict=False))[start:]
        values = [at[token].logprob for token, at in pairs if at and token in at]
        if len(positions) != len(ids) or len(values) != len(ids) - start:
            raise TransientFault(
                f"{len(values)} of {len(ids) - start} log-probs of prompt tokens, and "
                f"{len(positions)} positions for {len(ids)} tokens"
            )
        _check_logprobs(values)
        return values, usage

    async def healthy(self) -> bool:
        try:
            reply = await next(self._next).get("/health", timeout=HEALTH_SECONDS)
        except (httpx2.HTTPError, OSError):
            return False
        return reply.status_code == httpx2.codes.OK

    async def models(self) -> list[ServedModel]:
        """Return the served models. Raises a ``ServerFault``."""
        return _parsed(_Models, await self._send("GET", "/v1/models", None)).data

    async def reset_cache(self) -> bool:
        """Drop the server's prefix cache. Return True on success. Raises a ``ServerFault``."""
        return _parsed(_CacheReset, await self._send("POST", "/reset_prefix_cache", None)).success

    async def post(self, path: str, body: Mapping[str, Any]) -> None:
        await self._send("POST", path, body)

    def _request(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }

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
        self, body: Mapping[str, Any], prompt: Sequence[int]
    ) -> tuple[_Choice, ReportedUsage]:
        reply = _parsed(_Completions, await self._send("POST", "/v1/completions", body))
        (choice,) = reply.choices
        if reply.model != self.model:
            raise TransientFault(f"asked {self.model}, but {reply.model} answered")
        same = choice.prompt_token_ids in (None, list(prompt))
        if not same or reply.usage.prompt_tokens != len(prompt):
            raise TransientFault(
                f"the server answered another prompt: it has {len(prompt)} tokens, but the server reports "
                f"{reply.usage.prompt_tokens}"
            )
        return choice, reply.usage

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> httpx2.Response:
        return await request(next(self._next), method, path, body, f"{self.url}{path}: ")


def _check_logprobs(logprobs: Sequence[float]) -> None:
    if not all(math.isfinite(logprob) and logprob <= 0 for logprob in logprobs):
        raise TransientFault("some log-probs are not finite, or above 0")


def _parsed(kind: type[Reply], response: httpx2.Response) -> Reply:
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TransientFault(
            f"{response.url} sent an invalid reply: {where} {first['msg']}: {response.text[:200]!r}"
        ) from error
