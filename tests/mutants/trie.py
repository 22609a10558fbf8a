"""Faults of the prefix trie, its batches, and their log-probs."""

from tests.mutation.mutant import Mutant

TRIES = "tests/contract/test_06_tries.py"

MUTANTS = (
    Mutant(
        "trie-ancestors-without-itself",
        "models/trie.py",
        "(nodes[None] <= nodes[:, None])",
        "(nodes[None] < nodes[:, None])",
        "a token does not attend to itself",
        (TRIES,),
    ),
    Mutant(
        "trie-exits-to-the-end",
        "models/trie.py",
        "exits[nodes] = stop",
        "exits[nodes] = count",
        "a branch attends to the branch before it",
        (TRIES,),
    ),
)
