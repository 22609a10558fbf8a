"""Run the command ``coterie`` as ``python -m coterie``."""

from coterie.cli.app import main

main()
