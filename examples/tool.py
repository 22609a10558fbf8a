"""A tool: a function with types and a docstring. Environments with the key `tools` offer it to agents.
coterie evaluate examples/calls.py:Products 'environment.tools=[examples/tool.py:multiply]' policy=smollm2"""


def multiply(numbers: str) -> int:
    """Multiplies two whole numbers, such as 12 * 7."""
    first, second = numbers.split("*")
    return int(first) * int(second)
