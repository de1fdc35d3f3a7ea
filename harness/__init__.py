"""The harness: draws cases, judges candidates on them, shrinks, reports and times."""
