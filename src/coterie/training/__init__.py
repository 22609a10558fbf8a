"""Training: token sequences, masks, weights and log-probs. It knows no agents and no recipes."""
