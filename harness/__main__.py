"""`python -m harness` is `attnproof`."""

from harness.cli import main

main()
