"""Hypothesis drives, a worker runs the candidates, the ledger knows what was tried."""
