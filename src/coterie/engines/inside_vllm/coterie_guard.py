"""Guard before the routes of ``coterie serve model``: as middleware of vLLM, or as the program ``transformers serve``.

Only OpenAI's routes are left, for hosts and web pages of this machine, with limits. Uses only the standard library.
"""

import json
import re
from typing import Any

OPENAI = ("chat/completions", "completions", "embeddings", "models", "responses")
ROUTES = {"/health", *(f"/v1/{route}" for route in OPENAI)}
LOCAL = re.compile(rb"(https?://)?(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)
MAX_BYTES, MAX_REQUESTS = 16 << 20, 128
"""Maximum size of a request, and number of requests in flight."""


class Guard:
    """ASGI application that answers refused requests itself and passes the others on."""

    def __init__(self, app: Any) -> None:
        self._app, self._active = app, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refusal = () if scope["type"] == "lifespan" else self._refusal(scope)
        if refusal:
            status, message = refusal
            body = json.dumps({"error": {"message": message, "code": status}}).encode()
            start = {"type": "http.response.start", "status": status}
            await send({**start, "headers": [(b"content-type", b"application/json")]})
            await send({"type": "http.response.body", "body": body})
            return
        self._active += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._active -= 1

    def _refusal(self, scope: Any) -> tuple[int, str] | tuple[()]:
        """Return status and message if a request is refused."""
        headers = dict(scope["headers"])
        # A page of another site may have bound the name of its own host to this machine.
        sites = [value for name, value in scope["headers"] if name in (b"host", b"origin")]
        if b"host" not in headers or not all(map(LOCAL.fullmatch, sites)):
            return 403, "this server answers programs and pages of its own machine only"
        if scope["type"] != "http" or scope["path"] not in ROUTES:
            return 404, f"no such route; there are {', '.join(sorted(ROUTES))}"
        size = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not size.isdigit() or int(size) > MAX_BYTES:
            return 413, f"a request has a Content-Length of at most {MAX_BYTES} bytes"
        if self._active >= MAX_REQUESTS:
            return 503, f"{MAX_REQUESTS} requests are in flight; try again later"
        return ()


if __name__ == "__main__":
    import uvicorn
    from transformers.cli.transformers import main

    config: Any = uvicorn.Config
    setattr(uvicorn, "Config", lambda app, **options: config(Guard(app), **options))  # noqa: B010
    main()
