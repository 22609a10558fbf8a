"""The ``problems`` micro-world: word problems with ambiguous subgoals."""
