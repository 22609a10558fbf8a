"""What can go wrong between us and one server: for now, or for good."""


class ServerFault(Exception):
    """One request to one server failed; ``str`` says why."""


class TransientFault(ServerFault):
    """Worth another try: connection lost, 5xx, a reply that makes no sense, too many requests.

    ``retry_after`` is how many seconds the server asks us to wait, if it does.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class FinalFault(ServerFault):
    """The same request will fail again: out of context, unknown model, malformed."""
