"""SWEET-RL (arXiv 2503.15478): an agent learns to work with a person, from a critic that knows the reference."""
