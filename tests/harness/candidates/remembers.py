"""Returns another result when it gets an input a second time."""

from attnproof import reference

SEEN = set()


def is_block_tables_empty(block_tables):
    heard = repr(block_tables) in SEEN
    SEEN.add(repr(block_tables))
    return reference.is_block_tables_empty(block_tables) != heard
