"""Environments of other frameworks: AgentGym, OpenEnv, Verifiers, NeMo Gym and Reasoning Gym."""
