"""Web pages that an agent designs for a user (SWEET-RL with ColBench)."""
