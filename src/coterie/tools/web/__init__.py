"""The web as tools: search, reading pages, and servers of both."""
