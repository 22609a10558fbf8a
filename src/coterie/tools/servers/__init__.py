"""Servers of tools: `coterie serve tools` answers searches, pages and code over HTTP, each in its own wire format."""
