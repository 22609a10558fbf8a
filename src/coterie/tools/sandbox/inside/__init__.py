"""Code that runs inside the jail. It imports only the standard library, and is mounted there alone."""
