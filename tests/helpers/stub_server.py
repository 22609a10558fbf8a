"""A stand-in for ``vllm serve``: the routes of vLLM 0.32 that coterie's client uses, on any number of ports.

    python -m tests.helpers.stub_server MODEL NAME PORT|SOCKET [PORT ...] [--latencies] [--slots N]

Every port is a server of its own; port 0 is any free port. The first line of the output is a JSON list of the URLs. In
the place of ports there may be the path of a Unix socket.
A server gives the tokens of the engine in process to the last bit, so that tests can compare. With ``--latencies`` it
has no model: completions take 50 ms to 5 s, heavy-tailed, at 20 tokens a second, ``--slots`` at a time.
Their text repeats the name of the adapter.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.engines.vllm import HOST, VLLMBackend
from coterie.errors import UserError
from coterie.models.loading import LoadedModel, load, reload
from tests.helpers.serve_app import serve_app

SHORTEST, LONGEST = 0.05, 5.0
"""Seconds of a completion."""
TOKENS_PER_SECOND = 20.0


def latency(seed: int) -> float:
    """Return the seconds of a completion: Pareto with exponent 1, cut off at both ends; the mean is 0.23."""
    share = random.Random(seed).random()
    return SHORTEST / (1 - share * (1 - SHORTEST / LONGEST))


class Clock:
    """Time of a server in seconds. It stands still while the server is paused."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.running.set()
        self._lost = self._pause = 0.0

    def now(self) -> float:
        real = asyncio.get_running_loop().time()
        return (real if self.running.is_set() else self._pause) - self._lost

    def pause(self) -> None:
        if self.running.is_set():
            self._pause = asyncio.get_running_loop().time()
            self.running.clear()

    def resume(self) -> None:
        if not self.running.is_set():
            self._lost += asyncio.get_running_loop().time() - self._pause
            self.running.set()

    async def wait_until(self, time: float) -> None:
        while (left := time - self.now()) > 0:
            await self.running.wait()
            await asyncio.sleep(left)


class LatencyEngine:
    """Engine without a model. Log-probs of a text depend on the folder of its weights only."""

    def __init__(
        self, loaded: LoadedModel, clock: Clock, slots: int, version: str, word: str
    ) -> None:
        self.loaded = loaded
        self._clock = clock
        self._slots = asyncio.Semaphore(slots)
        self._folder = ""
        tokenizer = loaded.renderer.tokenizer
        self._ids: list[int] = tokenizer(f"{word} ", add_special_tokens=False)["input_ids"]
        self._starts = [(float("-inf"), version)]
        """Versions by the time of their loading."""

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        (seed,) = seeds
        count = min(max(round(latency(seed) * TOKENS_PER_SECOND), 2), sampling.max_tokens)
        async with self._slots:
            start = self._clock.now()
            await self._clock.wait_until(start + count / TOKENS_PER_SECOND)
        times = (start + (index + 1) / TOKENS_PER_SECOND for index in range(count))
        labels = (next(v for at, v in reversed(self._starts) if at < time) for time in times)
        spans = tuple((label, len(list(group))) for label, group in itertools.groupby(labels))
        ids = list(itertools.islice(itertools.cycle(self._ids), count))
        if count < sampling.max_tokens:
            ids[-1] = min(self.loaded.renderer.end_ids)
        return [Completion(tuple(ids), (-0.5,) * count, "", "end", seed, versions=spans)]

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        value = -1 - 4 * random.Random(self._folder).random()
        return [[value] * len(one) for one in continuations]

    def load(self, folder: str | None, version: str) -> None:
        if folder is not None:
            self._folder = str(Path(folder).resolve(strict=True))
        self._starts.append((self._clock.now(), version))


class Stub:
    """A model, and adapters that are merged into copies of it. ``raw`` log-probs are before temperature.

    With ``slots`` a server has latencies and so many requests at a time; a request may span versions of the weights.
    With a model, completions end before weights are loaded.
    """

    def __init__(
        self,
        model: str | Path,
        name: str,
        raw: bool = False,
        slots: int | None = None,
    ) -> None:
        self.name = name
        self.raw = raw
        self.root = str(model)
        self.version = "default"  # as in vLLM
        self.clock = Clock()
        self._slots = slots
        self._new: str | None = None
        """Folder of weights to load with the next version, or when the server resumes."""
        self._tasks: set[asyncio.Task[dict[str, Any]]] = set()
        self.engines = {name: self._engine(name)}

    def _engine(self, name: str) -> InProcessEngine | LatencyEngine:
        if self._slots is None:
            return InProcessEngine(load(self.root), policy=name, version=self.version)
        return LatencyEngine(_renderer(self.root), self.clock, self._slots, self.version, name)

    def app(self) -> Starlette:
        posts = {
            "/v1/completions": self.complete,
            "/inference/v1/generate": self.complete,
            "/v1/load_lora_adapter": self.load_adapter,
            "/v1/unload_lora_adapter": self.unload_adapter,
            "/collective_rpc": self.reload_weights,
            "/reset_prefix_cache": self.accept,
            "/pause": self.pause,
            "/resume": self.resume,
            "/init_weight_transfer_engine": self.accept,
            "/start_weight_update": self.accept,
            "/update_weights": self.update_weights,
            "/finish_weight_update": self.set_version,
            "/update_weight_version": self.set_version,
        }
        gets = {
            "/health": self.accept,
            "/v1/models": self.models,
            "/version": self.info,
            "/weight_info": self.info,
            "/is_paused": self.info,
        }
        routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
        routes += [Route(path, handler) for path, handler in gets.items()]
        handlers: Mapping[Any, Any] = dict.fromkeys((EngineError, UserError, OSError), refuse)
        return Starlette(routes=routes, exception_handlers=handlers)

    async def models(self, request: Request) -> Response:
        context = self.engines[self.name].loaded.context_length
        cards = [
            {"id": name, "root": self.root, "parent": parent, "max_model_len": context}
            for name, parent in zip(self.engines, [None, *[self.name] * 99], strict=False)
        ]
        return JSONResponse({"data": cards})

    async def info(self, request: Request) -> Response:
        paused = not self.clock.running.is_set()
        label = {"weight_version": self.version, "is_paused": paused, "version": "0.32.0"}
        return JSONResponse(label)

    async def accept(self, request: Request) -> Response:
        return JSONResponse({"success": True})

    # -- completions ------------------------------------------------------------------------------

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        if body["model"] not in self.engines:
            return error(404, f"no model {body['model']}")
        await self.clock.running.wait()
        task = asyncio.ensure_future(self._complete(body))
        self._tasks.add(task)
        gone = asyncio.ensure_future(request.receive())  # the client closes its connection
        gone.add_done_callback(lambda _: task.cancel())
        await asyncio.wait((task,))
        self._tasks.discard(task)
        if gone.done():
            return Response(status_code=499)
        gone.cancel()
        if task.cancelled():
            choice = {"token_ids": [], "finish_reason": "abort", "logprobs": None}
            usage = {"prompt_tokens": len(prompt_of(body)), "completion_tokens": 0}
            return JSONResponse({"model": body["model"], "choices": [choice], "usage": usage})
        return JSONResponse(task.result())

    async def _complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply of the completions route or of the token route."""
        engine, prompt = self.engines[body["model"]], prompt_of(body)
        options = body.get("sampling_params", body)
        stop = tuple(options.get("stop", ()))
        sampling = Sampling(
            options["temperature"], options.get("top_p", 1), options["max_tokens"], stop
        )
        (said,) = await engine.sample(prompt, [options.get("seed", 0)], sampling)
        logprobs = (await engine.logprobs(prompt, [said.ids]))[0] if self.raw else said.logprobs
        details: dict[str, Any] = {"prompt_token_ids": prompt}
        if "prompt_logprobs" in options:
            (scores,) = await engine.logprobs(prompt[:1], [prompt[1:]])
            pairs = zip(prompt[1:], scores, strict=True)
            details["prompt_logprobs"] = [None, *({i: {"logprob": value}} for i, value in pairs)]
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(said.ids),
            "prompt_tokens_details": {"cached_tokens": said.cached},
        }
        choice: dict[str, Any] = {"token_ids": said.ids, "finish_reason": said.finish}
        reply = {"model": body["model"], "choices": [choice], "usage": usage}
        if "sampling_params" not in body:
            choice |= {**details, "logprobs": {"token_logprobs": logprobs}}
            return reply
        pairs = zip(said.ids, logprobs, strict=True)
        content = [{"token_id": token, "logprob": value} for token, value in pairs]
        ends = list(itertools.accumulate(size for _, size in said.versions)) or [len(said.ids)]
        labels = [label for label, _ in said.versions] or [self.version]
        choice["logprobs"] = {"content": content}
        choice["weight_versions"] = [
            {"version": label, "start": start, "end": end}
            for label, start, end in zip(labels, [0, *ends], ends, strict=False)
        ]
        return {**reply, **details}

    # -- weights ----------------------------------------------------------------------------------

    async def pause(self, request: Request) -> Response:
        self.clock.pause()
        mode = request.query_params.get("mode", "abort")
        if mode == "abort":
            for task in self._tasks:
                task.cancel()
        return JSONResponse({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        await self._load()
        self.clock.resume()
        return JSONResponse({"status": "resumed"})

    async def reload_weights(self, request: Request) -> Response:
        self._new = (await request.json())["kwargs"]["weights_path"]
        if self.clock.running.is_set():
            await self._load()
        return JSONResponse({})

    async def update_weights(self, request: Request) -> Response:
        self._new = (await request.json())["update_info"].get("folder")
        return JSONResponse({})

    async def set_version(self, request: Request) -> Response:
        body = await request.json()
        self.version = body.get("weight_version") or body.get("new_version") or self.version
        await self._load()
        return JSONResponse({"success": True})

    async def _load(self) -> None:
        """Load new weights with the present version."""
        engine = self.engines[self.name]
        new, self._new = self._new, None
        if isinstance(engine, LatencyEngine):
            engine.load(new, self.version)
        elif new:
            if self._tasks:
                await asyncio.wait(self._tasks)
            await engine.load(Path(new), self.version)
        else:
            engine.version = self.version
        self.root = new or self.root

    async def load_adapter(self, request: Request) -> Response:
        body = await request.json()
        name, folder = body["lora_name"], body["lora_path"]
        if name in self.engines:
            return error(400, f"the adapter {name} is loaded already")
        engine = self._engine(name)
        if isinstance(engine, LatencyEngine):
            engine.load(folder, self.version)
        else:
            reload(engine.loaded, folder)
        self.engines[name] = engine
        return JSONResponse({})

    async def unload_adapter(self, request: Request) -> Response:
        del self.engines[(await request.json())["lora_name"]]
        return JSONResponse({})


@functools.cache
def _renderer(model: str) -> LoadedModel:
    """Return a model of which only the renderer is used."""
    return load(model)


def prompt_of(body: Mapping[str, Any]) -> list[int]:
    prompt: list[int] = body["token_ids" if "sampling_params" in body else "prompt"]
    return prompt


class StubBackend(VLLMBackend):
    """Starts stubs in the place of ``vllm serve``."""

    def command(self, model: str, name: str, listen: Mapping[str, Any]) -> Sequence[str]:
        return (sys.executable, "-m", "tests.helpers.stub_server", model, name, listen["uds"])

    def environment(self, index: int) -> Mapping[str, str]:
        return {"PYTHONPATH": ":".join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


def error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


async def refuse(request: Request, failure: Exception) -> Response:
    return error(400, str(failure))


@contextlib.asynccontextmanager
async def serve_stub(
    model: str | Path, name: str, raw: bool = False, **options: Any
) -> AsyncIterator[str]:
    """The URL of a stub on the loop of the test; ``options`` are those of :class:`Stub`."""
    async with serve_app(Stub(model, name, raw, **options).app()) as url:
        yield url


@contextlib.contextmanager
def stub_process(
    model: str, name: str, count: int, *options: str
) -> Iterator[tuple[list[str], subprocess.Popen[str]]]:
    """The URLs of ``count`` stubs in one process, and the process."""
    command = [
        sys.executable,
        "-m",
        "tests.helpers.stub_server",
        model,
        name,
        *["0"] * count,
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    environment["OMP_NUM_THREADS"] = "1"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline()), process
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("name")
    parser.add_argument("ports", nargs="+")
    parser.add_argument("--latencies", action="store_true")
    parser.add_argument("--slots", type=int, default=64)
    args = parser.parse_args()
    slots = args.slots if args.latencies else None
    if not args.ports[0].isdecimal():
        app = Stub(args.model, args.name, slots=slots).app()
        uvicorn.run(app, uds=args.ports[0], log_level="warning", lifespan="off", backlog=2048)
        return
    stubs = [Stub(args.model, args.name, slots=slots) for _ in args.ports]
    sockets = [socket.create_server((HOST, int(port)), backlog=2048) for port in args.ports]
    ports = [one.getsockname()[1] for one in sockets]
    apps = dict(zip(ports, (stub.app() for stub in stubs), strict=True))

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        await apps[scope["server"][1]](scope, receive, send)

    print(json.dumps([f"http://{HOST}:{port}" for port in ports]), flush=True)
    config = uvicorn.Config(route, log_level="warning", lifespan="off", backlog=2048)
    uvicorn.Server(config).run(sockets=sockets)


if __name__ == "__main__":
    main()
