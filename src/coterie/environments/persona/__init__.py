"""The `persona` micro-world: an agent asks a person what their function should do, then writes it."""
