"""The `exchange` micro-world: two agents hold different facts and must talk to answer a question."""
