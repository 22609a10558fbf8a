"""Plans of subgoals with actions, and their micro-worlds (MOAT)."""
