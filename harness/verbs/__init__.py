"""What the command line's verbs do, one file a verb; `harness.cli` only reads the options."""
