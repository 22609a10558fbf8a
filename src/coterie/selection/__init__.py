"""Selection: which nodes of the trees are trained on. Selections refer to nodes, never copy text."""
