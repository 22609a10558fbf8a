"""HTML pages of runs, evaluations and sweeps."""
