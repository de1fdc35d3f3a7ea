"""Content of the slots of a cache: the tokens that produced each key."""

from __future__ import annotations

NULL = 0
Table = list[int]
"""Blocks of a request in one group, NULL for those that no query sees."""
Key = tuple[int, int]
"""Group of layers, and the number of the prefix on which a key or a block depends."""


class Memory:
    """Keys in the slots of all blocks.

    A key depends on all tokens up to its own, so it is the number of that prefix: equal
    prefixes have one number.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        """Number of the prefix of a shorter prefix, 0 for the empty one, and a token."""
        self._slots: dict[tuple[int, int], Key | None] = {}

    def prefixes(self, tokens: list[int]) -> list[int]:
        """Return the number of the prefix that ends with each token."""
        numbers, number = [], 0
        for token in tokens:
            number = self._numbers.setdefault((number, token), len(self._numbers) + 1)
            numbers.append(number)
        return numbers

    def write(self, block: int, offset: int, key: Key | None) -> None:
        """Write a key, None for one that no prefix has."""
        self._slots[block, offset] = key

    def at(self, block: int, offset: int) -> Key | None:
        """Return what lies at a place of a block, None if nothing known."""
        return self._slots.get((block, offset))
