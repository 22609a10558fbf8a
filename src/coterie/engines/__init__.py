"""Engines that take and return tokens, behind one protocol. The default engine runs in this process."""
