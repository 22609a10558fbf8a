"""DensePolicy: dense trees of trajectories, and preferences between siblings."""
