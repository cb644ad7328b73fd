"""`python -m zoo`."""

from zoo.cli import main

main()
