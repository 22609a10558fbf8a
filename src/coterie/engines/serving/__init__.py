"""Our own server: an in-process engine behind an OpenAI-compatible protocol with token ids."""
