"""What runs inside the jail: standard library only, and bound there by itself."""
