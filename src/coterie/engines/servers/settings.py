"""Settings that every pool of servers has: how much, how often, how long."""

from coterie.config.settings import Settings, key


class ServerPoolSettings(Settings):
    """Bounds of a pool; times are read from clocks that nobody can set."""

    servers: int = key(1, "how many servers to start", ge=1)
    requests_per_server: int = key(128, "requests that one server is sent at a time", ge=1)
    attempts: int = key(6, "how often one request is tried, on whichever server", ge=1)
    restarts: int = key(3, "how often one server that died is started again", ge=0)
    stall_seconds: float = key(
        300.0,
        "after so long without an answer a request is tried elsewhere, and a server of ours that "
        "does not say that it is well is restarted",
        gt=0,
    )
    start_seconds: float = key(900.0, "how long a server may take to start", gt=0)
    grace_seconds: float = key(20.0, "how long a server may take to end before it is killed", ge=0)
    seed: int = key(0, "of the jitter of pauses between attempts; results do not depend on it")
