"""The files of SWEET-RL's released code: trajectories, preference pairs, ranked candidates."""
