"""Reinforcement learning within one stage of a run: steps of sampling, rewards, advantages and updates."""
