"""An MCP server of an older protocol, by hand, whose tools change: ``python old_mcp_server.py [FILE]``.

It announces a change, or makes one if FILE exists when it starts.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

tools = ["grow", "stir", "odd/name.v2", "environment", "die"]
if sys.argv[1:] and Path(sys.argv[1]).exists():
    tools.remove("stir")


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def schema(name: str) -> dict[str, Any]:
    words = {"type": "object", "properties": {"word": {"type": "string"}}}
    return {"name": name, "inputSchema": words}


print("not a message", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "old", "version": "1"}}
        send(id=number, result={**result, "capabilities": {"tools": {"listChanged": True}}})
    elif method == "tools/list":
        send(id=number, result={"tools": [schema(name) for name in tools]})
    elif method == "tools/call":
        name = message["params"]["name"]
        if name == "die":
            os._exit(3)
        if name == "grow":
            tools.append("new")
        if name in ("grow", "stir"):
            send(method="notifications/tools/list_changed")
        text = " ".join(os.environ) if name == "environment" else f"{name} is done"
        send(id=number, result={"content": [{"type": "text", "text": text}]})
    elif number is not None:
        send(id=number, error={"code": -32601, "message": "not found"})
