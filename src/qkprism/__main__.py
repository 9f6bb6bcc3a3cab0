"""`python -m qkprism` is the command `qkprism`."""

from qkprism.cli import main

main()
