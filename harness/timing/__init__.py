"""Speed of what was verified: candidates in turn in one process, with intervals and a verdict."""
