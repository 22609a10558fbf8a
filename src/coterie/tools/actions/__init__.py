"""Language of action lines, such as ``R1 = Calculator(48 / 2)``, and executors; only ``Code`` runs, in a jail."""
