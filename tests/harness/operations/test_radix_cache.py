"""The tree of cached prefixes: mistakes that only several steps show."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial

OPERATION = ALL["RadixCache"]
LONGER, OTHER, SHORT = [0, 0, 1, 1], [1, 1], [0, 0]


class Unlocked(reference.RadixCache):
    """Evicts what is locked."""

    def _add_locks(self, prefix, count):
        pass


class UnlockedAbove(reference.RadixCache):
    """Forgets the locks of the upper part of a divided node."""

    def _split(self, prefix, end):
        super()._split(prefix, end)
        self._nodes[prefix[:end]].locks = 0


class Unused(reference.RadixCache):
    """Does not count a match as a use."""

    def match_prefix(self, token_ids):
        times = {prefix: node.time for prefix, node in self._nodes.items()}
        slots = super().match_prefix(token_ids)
        for prefix, time in times.items():
            self._nodes[prefix].time = time
        return slots


@pytest.mark.parametrize("cls", [reference.RadixCache, Unlocked, UnlockedAbove, Unused])
def test_wrong_caches_are_found(cls):
    steps = [
        {"do": "insert", "token_ids": LONGER, "size_N": 4},
        {"do": "insert", "token_ids": OTHER, "size_N": 2},
        {"do": "match_prefix", "token_ids": LONGER, "size_N": 4},
        {"do": "evict", "num_tokens": 1},
        {"do": "lock", "token_ids": LONGER, "size_N": 4},
        {"do": "match_prefix", "token_ids": SHORT, "size_N": 2},
        {"do": "evict", "num_tokens": 9},
        {"do": "unlock", "number": 0},
        {"do": "evict", "num_tokens": 9},
    ]
    case = Case("RadixCache", None, {"page_size": 2, "layout": {}, "steps": steps})
    failures = judge(Trial(OPERATION, case, cls, reference.RadixCache, "cpu")).failures
    assert bool(failures) == (cls is not reference.RadixCache)
