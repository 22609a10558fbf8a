"""Search of passages: indexes of corpora, and the tool that searches them or asks a retrieval server."""
