"""Code of a task process: draws, judges and shrinks the cases of one operation and candidate."""
