"""Terminal output and arguments of commands: tables, notes, progress and settings."""
