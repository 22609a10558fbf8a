"""What commands and a person say to each other: tables and notes, progress, settings as words."""
