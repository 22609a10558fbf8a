"""Reinforcement learning of any agent in any environment: GRPO, DAPO, PPO."""
