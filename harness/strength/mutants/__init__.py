"""Mutants of a candidate's functions: which of its lines could be wrong without a finding."""
