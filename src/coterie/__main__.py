"""``python -m coterie`` is the command ``coterie``."""

from coterie.cli.app import main

main()
