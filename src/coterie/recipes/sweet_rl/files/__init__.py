"""The files of SWEET-RL's released code: trajectories and preference pairs."""
