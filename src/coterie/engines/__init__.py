"""Engines: tokens in, tokens out. One protocol; in-process is the embedded default."""
