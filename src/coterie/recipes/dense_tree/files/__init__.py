"""The files of DensePolicy's released code: pairs of a tree, and what LLaMA-Factory trained on."""
