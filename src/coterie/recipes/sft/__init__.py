"""Supervised fine-tuning on conversations of a file."""
