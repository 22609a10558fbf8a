"""How models write calls in their own way: one module for each family of ways."""
