"""What the verbs of the command line do, one file a verb; `harness.cli` reads the options."""
