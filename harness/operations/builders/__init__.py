"""The operation of a candidate's own metadata builder."""
