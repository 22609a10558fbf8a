"""HTTP application of ``coterie view``, for one person on this machine.

It answers GET requests with the random token of its address, or with the cookie that the address sets. The names of
the page's files are compared with a list, so that no path of a request reaches the disk.
"""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from coterie.cli.serve import HOST
from coterie.cli.view import LARGE, POLICY, TYPES, Viewer, dumps, list_ahead, page_files
from coterie.errors import UserError

HEADERS = {
    "Content-Security-Policy": POLICY.format("'self'", "'self'", "'self' data:")
    + "; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def application(viewer: Viewer, token: str, cookie: str, large: int = LARGE) -> Starlette:
    """Return the application.

    Args:
        viewer: Answers of the application.
        token: What the address must have.
        cookie: Name of the cookie.
        large: Number of rollouts of a stage whose list is read at once, while the browser starts.
    """
    files = page_files()
    is_idle = Event()
    is_idle.set()
    reading = ThreadPoolExecutor(1).submit(list_ahead, viewer, large, is_idle)

    async def guard(request: Request, call_next: Any) -> Response:
        reason = _refusal(request, token, cookie)
        text = f"{reason}; open the address that `coterie view` printed\n"
        response = PlainTextResponse(text, 403) if reason else await call_next(request)
        response.headers.update(HEADERS)
        return response

    async def page(request: Request) -> Response:
        name = request.path_params["name"] or "index.html"
        if name not in files:
            return PlainTextResponse("not found\n", 404)
        response = Response(files[name], media_type=TYPES[name[name.rindex(".") :]])
        if "token" in request.query_params:
            response.set_cookie(cookie, token, httponly=True, samesite="strict")
        return response

    # Coroutines, so that all answers are read in the thread of the SQLite connection.
    async def api(request: Request) -> Response:
        if request.path_params["route"] == "tasks":
            ahead = await asyncio.wrap_future(reading)
            now = (dict(request.query_params), viewer.browsers[0].quiet_state())
            if ahead and now == ahead[:2]:
                return Response(ahead[2], media_type="application/json")
        is_idle.clear()
        try:
            answer, status = _answer(viewer, request)
        finally:
            is_idle.set()
        return Response(dumps(answer), status, media_type="application/json")

    async def image(request: Request) -> Response:
        try:
            data, kind = viewer.image(request.path_params["hash"])
        except (KeyError, UserError) as error:
            return PlainTextResponse(f"{error}\n", 404)
        return Response(data, media_type=kind)

    routes = (("/api/{route}", api), ("/image/{hash}", image), ("/{name:path}", page))
    return Starlette(
        routes=[Route(path, function, methods=["GET"]) for path, function in routes],
        middleware=[
            # Against DNS rebinding, by which another site's name leads to this machine.
            Middleware(
                TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False
            ),
            Middleware(BaseHTTPMiddleware, dispatch=guard),
        ],
    )


def _answer(viewer: Viewer, request: Request) -> tuple[dict[str, Any], int]:
    """Return an answer, or an error with its fix, and the status."""
    try:
        return viewer.answer(request.path_params["route"], request.query_params), 200
    except UserError as error:
        return {"error": error.what, "fix": error.todo}, 500
    except KeyError as error:
        return {"error": str(error.args[0]), "fix": "go back to the tasks"}, 404
    except (ValueError, IndexError, OverflowError) as error:
        return {"error": f"wrong parameters: {error}", "fix": "correct the address"}, 400


def _refusal(request: Request, token: str, cookie: str) -> str:
    """Return why a request is refused; empty for a request of the page."""
    in_address = request.query_params.get("token", "") if request.url.path == "/" else ""
    secret = in_address or request.cookies.get(cookie, "")
    if not secrets.compare_digest(secret.encode("utf-8", "replace"), token.encode()):
        return "the token is missing or wrong"
    # Pages of other programs on this machine are of the same site, and browsers send them this cookie.
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    is_same = site in ("none", "same-origin") and origin in (
        None,
        f"http://{request.headers['host']}",
    )
    return "" if is_same or in_address else "the request is of another page"
