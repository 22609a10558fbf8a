"""Faults of a request to one server: transient or final."""


class ServerFault(Exception):
    """Failure of one request to one server."""


class TransientFault(ServerFault):
    """Fault that is worth a retry: lost connection, status 5xx, invalid reply, too many requests.

    ``retry_after`` is the server's requested pause in seconds, if any.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class FinalFault(ServerFault):
    """Fault that would repeat: context overflow, unknown model, malformed request."""
