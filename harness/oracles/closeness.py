"""Where `harness.cases.closeness` was: operations may not import from here."""

from harness.cases.closeness import TOLERANCES, close, farthest

__all__ = ["TOLERANCES", "close", "farthest"]
