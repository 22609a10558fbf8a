"""The server's routes: an OpenAI-compatible protocol, with token ids in and out as vLLM has it.

The engine runs on the server's own asyncio loop, which is given back between its steps.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

import coterie
from coterie.engines.serving.answered import Loaded, ModelCard, ModelList
from coterie.engines.serving.asked import (
    AdapterAsked,
    AdapterGone,
    CheckpointAsked,
    CompletionAsked,
)
from coterie.engines.serving.completions import complete
from coterie.engines.serving.errors import ClientGone, Refused, answer, handle_errors
from coterie.engines.serving.policies import Policies, Policy

Result = TypeVar("Result")
Handlers = dict[str, Callable[..., Coroutine[Any, Any, Response]]]


def make_app(policies: Policies, *, allow_loading: bool = False) -> FastAPI:
    """The server's application; ``allow_loading`` lets clients load weights from local folders."""
    app = FastAPI(title="coterie", version=coterie.__version__)
    handle_errors(app)
    routes = Routes(policies, allow_loading)
    gets: Handlers = {
        "/health": routes.health,
        "/version": routes.version,
        "/v1/models": routes.models,
    }
    posts: Handlers = {
        "/v1/completions": routes.completions,
        "/v1/load_lora_adapter": routes.load_adapter,
        "/v1/unload_lora_adapter": routes.unload_adapter,
        "/load_checkpoint": routes.load_checkpoint,
        "/reset_prefix_cache": routes.reset_prefix_cache,
    }
    for method, handlers in (("GET", gets), ("POST", posts)):
        for path, handler in handlers.items():
            app.add_api_route(path, handler, methods=[method], response_model=None)
    return app


class Routes:
    """What each route does."""

    def __init__(self, policies: Policies, allow_loading: bool) -> None:
        self._policies = policies
        self._allow_loading = allow_loading

    async def health(self) -> Response:
        """200 when requests are taken, 503 while weights are being loaded."""
        if self._policies.loading:
            return answer(503, f"{self._policies.loading} is being loaded")
        return JSONResponse({})

    async def version(self) -> Response:
        """The version of coterie."""
        return JSONResponse({"version": coterie.__version__})

    async def models(self) -> Response:
        """The model and its adapters, each with the version of its weights."""
        return reply(ModelList(data=[_card(policy) for policy in self._policies.all()]))

    async def completions(self, asked: CompletionAsked, request: Request) -> Response:
        """Continue prompts of text or token ids, or score them."""
        policy = self._named(asked.model)
        return reply(await _while_connected(request, complete(policy.engine, asked)))

    async def load_checkpoint(self, asked: CheckpointAsked) -> Response:
        """Replace the model's weights by those of a local folder."""
        self._check_loading()
        path = Path(asked.path)
        return _loaded(await self._policies.load_checkpoint(path, asked.version))

    async def load_adapter(self, asked: AdapterAsked) -> Response:
        """Serve the model with the LoRA adapter of a local folder, under a name of its own."""
        self._check_loading()
        path = Path(asked.lora_path)
        return _loaded(await self._policies.load_adapter(asked.lora_name, path))

    async def unload_adapter(self, asked: AdapterGone) -> Response:
        """Stop serving an adapter."""
        self._check_loading()
        return _loaded(self._policies.unload_adapter(asked.lora_name))

    async def reset_prefix_cache(self) -> Response:
        """Drop what was kept of prompts."""
        self._policies.forget()
        return JSONResponse({})

    def _named(self, name: str) -> Policy:
        if self._policies.loading:
            raise Refused(503, f"{self._policies.loading} is being loaded")
        return self._policies.get(name)

    def _check_loading(self) -> None:
        if not self._allow_loading:
            raise Refused(403, "this server loads nothing: it was not started with --allow-loading")


def reply(body: BaseModel) -> Response:
    """A body as JSON, without what is not there."""
    return Response(body.model_dump_json(exclude_none=True), media_type="application/json")


async def _while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What ``work`` comes to; it is cancelled if the client goes away first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _card(policy: Policy) -> ModelCard:
    engine = policy.engine
    return ModelCard(
        id=policy.name,
        created=policy.created,
        root=policy.root,
        parent=policy.parent,
        version=engine.version,
        max_model_len=engine.loaded.context_length,
    )


def _loaded(policy: Policy) -> Response:
    return reply(Loaded(model=policy.name, version=policy.engine.version))
