"""A stand-in for ``vllm serve``: a tiny model on the engine in process, behind the routes of vLLM that the pool uses.

    python -m tests.stub_server MODEL NAME PORT

It gives the tokens of the engine in process to the last bit, so that tests can compare.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import EngineError, Sampling
from coterie.engines.vllm import HOST, VLLMBackend
from coterie.errors import UserError
from coterie.models.loading import load, reload
from tests.listening import listening


class Stub:
    """A model, and adapters that are merged into copies of it. ``raw`` log-probs are before temperature."""

    def __init__(self, model: str | Path, name: str, raw: bool = False) -> None:
        self.name = name
        self.raw = raw
        self.root = str(model)
        self.engines = {name: InProcessEngine(load(model), policy=name)}

    def app(self) -> Starlette:
        posts = {
            "/v1/completions": self.complete,
            "/v1/load_lora_adapter": self.load_adapter,
            "/v1/unload_lora_adapter": self.unload_adapter,
            "/collective_rpc": self.reload_weights,
            "/reset_prefix_cache": self.reset_cache,
        }
        routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
        routes += [Route("/health", self.reset_cache), Route("/v1/models", self.models)]
        handlers: Mapping[Any, Any] = dict.fromkeys((EngineError, UserError), refuse)
        return Starlette(routes=routes, exception_handlers=handlers)

    async def models(self, request: Request) -> Response:
        context = self.engines[self.name].loaded.context_length
        cards = [
            {"id": name, "root": self.root, "parent": parent, "max_model_len": context}
            for name, parent in zip(self.engines, [None, *[self.name] * 9], strict=False)
        ]
        return JSONResponse({"data": cards})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        if (engine := self.engines.get(body["model"])) is None:
            return error(404, f"no model {body['model']}")
        prompt, stop = body["prompt"], tuple(body.get("stop", ()))
        sampling = Sampling(body["temperature"], body.get("top_p", 1), body["max_tokens"], stop)
        task = asyncio.ensure_future(engine.sample(prompt, [body.get("seed", 0)], sampling))
        gone = asyncio.ensure_future(request.receive())  # the client closes its connection
        gone.add_done_callback(lambda _: task.cancel())
        await asyncio.wait((task,))
        gone.cancel()
        if task.cancelled():
            return Response(status_code=499)
        (said,) = task.result()
        logprobs = (await engine.logprobs(prompt, [said.ids]))[0] if self.raw else said.logprobs
        choice: dict[str, Any] = {
            "token_ids": said.ids,
            "prompt_token_ids": prompt,
            "logprobs": {"token_logprobs": logprobs},
        }
        if "prompt_logprobs" in body:
            (scores,) = await engine.logprobs(prompt[:1], [prompt[1:]])
            pairs = zip(prompt[1:], scores, strict=True)
            choice["prompt_logprobs"] = [None, *({i: {"logprob": value}} for i, value in pairs)]
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(said.ids),
            "prompt_tokens_details": {"cached_tokens": said.cached},
        }
        return JSONResponse({"model": body["model"], "choices": [choice], "usage": usage})

    async def load_adapter(self, request: Request) -> Response:
        body = await request.json()
        merged = load(self.root)
        reload(merged, body["lora_path"])
        self.engines[body["lora_name"]] = InProcessEngine(merged, policy=body["lora_name"])
        return JSONResponse({})

    async def unload_adapter(self, request: Request) -> Response:
        del self.engines[(await request.json())["lora_name"]]
        return JSONResponse({})

    async def reload_weights(self, request: Request) -> Response:
        self.root = (await request.json())["kwargs"]["weights_path"]
        await self.engines[self.name].load(Path(self.root), "")
        return JSONResponse({})

    async def reset_cache(self, request: Request) -> Response:
        return JSONResponse({"success": True})


class StubBackend(VLLMBackend):
    """Starts stubs in the place of ``vllm serve``."""

    def command(self, model: str, name: str, port: int) -> Sequence[str]:
        return (sys.executable, "-m", "tests.stub_server", model, name, str(port))

    def environment(self, index: int) -> Mapping[str, str]:
        return {"PYTHONPATH": ":".join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


def error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


async def refuse(request: Request, failure: Exception) -> Response:
    return error(400, str(failure))


@contextlib.asynccontextmanager
async def served(model: str | Path, name: str, raw: bool = False) -> AsyncIterator[str]:
    """The URL of a stub on the loop of the test."""
    async with listening(Stub(model, name, raw).app()) as url:
        yield url


if __name__ == "__main__":
    app = Stub(sys.argv[1], sys.argv[2]).app()
    uvicorn.run(app, host=HOST, port=int(sys.argv[3]), log_level="warning")
