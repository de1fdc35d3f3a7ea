"""Timing of verified operations: candidates in turn in one process, intervals, verdicts."""
