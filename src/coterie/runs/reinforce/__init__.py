"""Reinforcement learning: steps of sampling, rewards, advantages and updates, within one stage of a run."""
