"""SWEET-RL (arXiv 2503.15478): a turn-level critic with access to the reference, and a policy trained on its pairs."""
