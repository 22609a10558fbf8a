"""Client of MCP servers, and a server of our tools (package ``mcp``)."""
