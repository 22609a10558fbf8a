"""The ``encyclopedia`` micro-world: invented entries that a real retriever finds, and questions over several."""
