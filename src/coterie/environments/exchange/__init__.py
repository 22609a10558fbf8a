"""The ``exchange`` micro-world: two agents with different facts must talk to answer a question."""
