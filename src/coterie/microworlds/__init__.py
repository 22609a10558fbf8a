"""The micro-worlds' models: what is said in them, and the pre-training that makes the packaged checkpoints."""
