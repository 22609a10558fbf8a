"""DensePolicy: preference pairs from dense trees of trajectories."""
