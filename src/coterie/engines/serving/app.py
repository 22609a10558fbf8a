"""The server's routes: an OpenAI-compatible protocol, with token ids in and out as vLLM has it.

The engine runs on the server's own asyncio loop, which is given back between its steps.
"""

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

import coterie
from coterie.engines.serving.answers import RequestRefused
from coterie.engines.serving.chats import chat_prompt, complete_chat
from coterie.engines.serving.completions import complete
from coterie.engines.serving.connection import finish
from coterie.engines.serving.errors import handle_errors
from coterie.engines.serving.policies import Policies, Policy
from coterie.engines.serving.requests import (
    AdapterRemoval,
    AdapterRequest,
    ChatRequest,
    CheckpointRequest,
    CompletionRequest,
)
from coterie.engines.serving.responses import Loaded, ModelCard, ModelList
from coterie.engines.serving.streams import Events, stream_reply


def make_app(policies: Policies, *, allow_loading: bool = False) -> FastAPI:
    """The server's application; ``allow_loading`` lets clients load weights from local folders."""
    app = FastAPI(title="coterie", version=coterie.__version__)
    handle_errors(app)
    routes = Routes(policies, allow_loading)
    app.get("/health")(routes.health)
    app.get("/version")(routes.version)
    app.get("/v1/models")(routes.models)
    app.post("/v1/completions")(routes.completions)
    app.post("/v1/chat/completions")(routes.chat)
    app.post("/v1/load_lora_adapter")(routes.load_adapter)
    app.post("/v1/unload_lora_adapter")(routes.unload_adapter)
    app.post("/load_checkpoint")(routes.load_checkpoint)
    app.post("/reset_prefix_cache")(routes.reset_prefix_cache)
    return app


class Routes:
    """What each route does."""

    def __init__(self, policies: Policies, allow_loading: bool) -> None:
        self._policies = policies
        self._allow_loading = allow_loading

    async def health(self) -> Response:
        """200 when requests are taken, 503 while weights are being loaded."""
        self._policies.gate.check()
        return JSONResponse({})

    async def version(self) -> Response:
        """The version of coterie."""
        return JSONResponse({"version": coterie.__version__})

    async def models(self) -> Response:
        """The model and its adapters, each with the version of its weights."""
        return reply(ModelList(data=[_card(policy) for policy in self._policies.all()]))

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """Continue prompts of text or token ids, or score them."""
        policy = self._named(body.model)
        return reply(await finish(request, complete(policy.engine, body)))

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """Reply to a chat, at once or as a stream of server-sent events."""
        engine = self._named(body.model).engine
        prompt = chat_prompt(engine, body)
        if body.stream:
            return Events(stream_reply(engine, body, prompt, request))
        return reply(await finish(request, complete_chat(engine, body, prompt)))

    async def load_checkpoint(self, body: CheckpointRequest) -> Response:
        """Replace the model's weights by those of a local folder."""
        self._check_loading()
        path = Path(body.path)
        return _loaded(await self._policies.load_checkpoint(path, body.version))

    async def load_adapter(self, body: AdapterRequest) -> Response:
        """Serve the model with the LoRA adapter of a local folder, under a name of its own."""
        self._check_loading()
        path = Path(body.lora_path)
        return _loaded(await self._policies.load_adapter(body.lora_name, path))

    async def unload_adapter(self, body: AdapterRemoval) -> Response:
        """Stop serving an adapter."""
        self._check_loading()
        return _loaded(self._policies.unload_adapter(body.lora_name))

    async def reset_prefix_cache(self) -> Response:
        """Drop what was kept of prompts."""
        self._policies.forget()
        return JSONResponse({})

    def _named(self, name: str) -> Policy:
        self._policies.gate.check()
        return self._policies.get(name)

    def _check_loading(self) -> None:
        if not self._allow_loading:
            raise RequestRefused(
                403, "this server loads nothing: it was not started with --allow-loading"
            )


def reply(body: BaseModel) -> Response:
    """A body as JSON, without what is not there."""
    return Response(body.model_dump_json(exclude_none=True), media_type="application/json")


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
