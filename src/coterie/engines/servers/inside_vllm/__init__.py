"""Code inside a vLLM server that coterie starts. This folder is on the server's path, coterie may not be."""
