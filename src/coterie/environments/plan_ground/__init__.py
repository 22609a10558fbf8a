"""A planner that splits tasks into subgoals, and a grounder that turns subgoals into executable actions."""
