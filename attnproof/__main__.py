"""`python -m attnproof`: the command line."""

from attnproof.harness.cli import main

main()
