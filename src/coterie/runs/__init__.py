"""Run folders: settings, store and checkpoints of one run, and the loop over its stages."""
