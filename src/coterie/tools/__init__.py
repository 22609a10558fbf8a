"""Tools that agents and graders call."""
