"""What runs inside a vLLM server that coterie starts: this folder is on the server's path, and coterie need not be."""
