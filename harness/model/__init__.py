"""Frozen data that passes between the rooms: cases, operations, verdicts, runs."""
