"""Error for malformed input (SPEC.md section 0, rule 6)."""

from __future__ import annotations


class MetadataError(ValueError):
    """Malformed metadata, raised before anything is written.

    Four strings: `operation` and `field` are the location, `given` describes the value
    found there and `expected` the accepted values.
    """

    def __init__(self, operation: str, field: str, given: object, expected: str) -> None:
        super().__init__(operation, field, given, expected)
        self.operation = operation
        self.field = field
        self.given = str(given)
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.operation}: {self.field} is {self.given}, expected {self.expected}"
