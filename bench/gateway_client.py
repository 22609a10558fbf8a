"""Client of ``bench/gateway.py``: conversations of sessions that are given on standard input. Standard library only."""

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit


class Connection:
    """A keep-alive connection to a session, without the time of a client library."""

    def __init__(self, base_url: str, key: str) -> None:
        parts = urlsplit(base_url)
        self._connection = http.client.HTTPConnection(parts.netloc)
        self._path = f"{parts.path}/chat/completions"
        self._head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(self, model: str, messages: Sequence[Any]) -> Any:
        body = json.dumps({"model": model, "messages": messages}).encode()
        self._connection.request("POST", self._path, body, self._head)
        return json.load(self._connection.getresponse())


def ask_sessions() -> None:
    """Hold the conversations whose sessions are given on standard input, each in a thread."""

    def hold(base_url: str, key: str) -> None:
        connection, messages, seconds = Connection(base_url, key), [], []
        for number in range(int(sys.argv[1])):
            messages.append(
                {"role": "user", "content": f"Question {number}: where does Nora live?"}
            )
            began = time.perf_counter()
            reply = connection.ask("agent", messages)
            seconds.append(time.perf_counter() - began)
            messages.append(reply["choices"][0]["message"])
        # One write, since several threads end at a time.
        os.write(sys.stdout.fileno(), f"{json.dumps([key, seconds])}\n".encode())

    for line in sys.stdin:
        threading.Thread(target=hold, args=json.loads(line)).start()


if __name__ == "__main__":
    ask_sessions()
