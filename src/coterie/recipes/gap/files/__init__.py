"""The files of GAP's released code: traces for supervised fine-tuning, and prompts for reinforcement learning."""
