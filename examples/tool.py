"""A tool: a function with types and a docstring, which agents of any environment can be given.
coterie evaluate examples/calls.py:Products 'tools=[examples/tool.py:multiply]' tools.calls=tags policy=smollm2"""


def multiply(numbers: str) -> int:
    """Multiplies two whole numbers, such as 12 * 7."""
    first, second = numbers.split("*")
    return int(first) * int(second)
