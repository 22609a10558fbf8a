"""Reinforcement learning: PPO, GRPO and DAPO."""
