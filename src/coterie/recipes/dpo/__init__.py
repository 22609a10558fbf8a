"""Direct preference optimization on preferences of a file."""
