"""Tools of MCP servers, and our own tools offered by that protocol (package ``mcp``)."""
