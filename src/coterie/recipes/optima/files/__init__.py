"""The JSONL files of Optima's released code: dialogues, rewards and preference pairs, in and out."""
