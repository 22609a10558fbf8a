"""The tool server's application: every tool's routes, under its name and at the root, and its health."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

import coterie
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.tools.servers.answers import RequestRefused, answer, answer_to
from coterie.tools.servers.kinds import Backend, BackendSettings
from coterie.tools.servers.limits import ID, Gate, Limits


@dataclass(frozen=True, slots=True)
class Served:
    """A tool of the server."""

    settings: BackendSettings
    """With its name."""
    backend: Backend


def make_app(tools: Sequence[Served]) -> ASGIApp:
    """The application that serves open tools.

    A tool's routes are under ``/NAME``, and those of the first of each kind at the root too, where clients of its wire
    format look for them.
    """
    app = FastAPI(title="coterie tools", version=coterie.__version__, openapi_url=None)
    kinds = (RequestRefused, RequestValidationError, EngineError, UserError, HTTPException)
    for kind in (*kinds, Exception):
        app.add_exception_handler(kind, _failed)
    gates = {one.settings.name: Gate(one.settings) for one in tools}

    async def health() -> Response:
        """That requests are taken, and how busy each tool is."""
        told = {
            name: {"kind": gate.settings.kind, "running": gate.running, "waiting": gate.waiting}
            for name, gate in gates.items()
        }
        return JSONResponse({"status": "ok", "tools": told})

    app.get("/health")(health)
    limited: dict[str, Gate] = {}
    seen: set[str] = set()
    for one in tools:
        name, router = one.settings.name, one.backend.router
        prefixes = [f"/{name}"] if one.settings.kind in seen else [f"/{name}", ""]
        seen.add(one.settings.kind)
        for prefix in prefixes:
            app.include_router(router, prefix=prefix)
            limited |= {f"{prefix}{path}": gates[name] for path in _posted(router.routes)}
    return Limits(app, limited)


def _posted(routes: Sequence[BaseRoute]) -> list[str]:
    """The paths that take a ``POST``."""
    return [
        route.path
        for route in routes
        if isinstance(route, Route) and "POST" in (route.methods or ())
    ]


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, EngineError):
        return answer(502, str(error))
    failed = f"the server failed; its log has the reason, under {request.scope[ID]}"
    return answer_to(request, error, failed)
