"""The ``encyclopedia`` micro-world: invented entries behind a real retriever, and questions about several entries."""
