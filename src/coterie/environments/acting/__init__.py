"""An agent that acts in an environment, step by step: thoughts, actions and answers in its text."""
