"""What a failure of the model server is answered with."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from coterie.engines.protocol import EngineError
from coterie.engines.serving.answers import RequestRefused, answer, answer_to
from coterie.engines.serving.policies import Busy, Loading, Unknown
from coterie.errors import UserError


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def handle_errors(app: FastAPI) -> None:
    """Answer every failure of a route in one form."""
    kinds = (RequestRefused, RequestValidationError, EngineError, UserError, ClientGone)
    for kind in (*kinds, HTTPException, Exception):
        app.add_exception_handler(kind, _failed)


async def _failed(request: Request, error: Exception) -> Response:
    match error:
        case Busy():
            return answer(409, str(error))
        case Loading():
            return answer(503, str(error))
        case Unknown():
            return answer(404, str(error), param="model")
        case EngineError():
            return answer(500, str(error))
        case ClientGone():
            return Response(status_code=499)
    return answer_to(request, error, f"the server failed: {error!r}")
