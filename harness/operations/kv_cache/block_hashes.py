"""Operation of SPEC.md section 16: which blocks of requests have one hash.

Bug classes: a salt that equals an adapter's name (#44701), an item at another place, a hash
without its prefix or the tokens behind its block, one of the first part of a larger block.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Annotated

from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.derived.params import Parameter
from attnproof.harness.operations.shared.params import Few, Some
from attnproof.reference import match_block_hashes as reference

_Number = Annotated[int, Meta(ge=0, le=4096)]
_Row = Annotated[list[_Number], Meta(min_length=6, max_length=6)]
"""Tokens, the place of the one that is its own, adapter, salt, item and its place."""
_Rows = Annotated[list[_Row], Meta(max_length=64)]
_MOST = 24, 24, 3, 2, 2, 9
_ROW = st.tuples(*(st.integers(0, most) for most in _MOST)).map(list)
_COPIES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, len(_MOST) - 1), st.integers(0, 24)), max_size=3
)
"""Copies of rows: number of the row, the place of the number that differs, that number."""
_ADAPTERS = ["", ""], ["x", "first"], ["y", "first"], ["x", "second"]
_SALTS = "", "x", "first"
_USUAL = [[17, 9, 0, 0, 0, 0], [9, 9, 0, 0, 0, 0]]
_ITEM, _FIRST, _END = 3, 4, 13
"""Tokens of an item, and the placeholders among which it stands."""
_PLACES = _END - _ITEM + 1 - _FIRST
_COMMON = 9
"""Identifier of items of one token that stand before that of each row."""
_BITS = 17
"""Bits of a token of the largest vocabularies, less one."""


def _with_copies(drawn: tuple[list[list[int]], list[tuple[int, int, int]]]) -> list[list[int]]:
    """Return rows and copies that differ in one number: what else is equal, a hash may lack."""
    rows, copies = drawn
    for row, at, value in copies if rows else ():
        copied = [*rows[row % len(rows)]]
        copied[at] = value % (_MOST[at] + 1)
        rows = [*rows, copied]
    return rows


_ROWS = st.tuples(st.lists(_ROW, max_size=4), _COPIES).map(_with_copies)


def _tokens(values: Values) -> list[list[int]]:
    """Return tokens of which one is the row's own, and those behind it are common again.

    It differs from the common one in a single bit, that of the row, the highest ones first.
    """
    lists = []
    for number, (length, differs, _, _, item, _) in enumerate(values.params["rows"]):
        tokens = list(range(1, length + 1))
        if item:
            tokens[_FIRST:_END] = [0] * len(tokens[_FIRST:_END])
        own = [token ^ 1 << _BITS - number % _BITS for token in tokens[differs : differs + 1]]
        tokens[differs : differs + 1] = own
        lists.append(tokens)
    return lists


def _items(values: Values) -> list[list[list[int]]]:
    """Return an item of each row, behind the common ones, among placeholders that are alike."""
    before = min(values.params["items_before"], _PLACES - 1)
    common = [[_COMMON, _FIRST + i, 1] for i in range(before)]
    return [
        [*common, [item, _FIRST + before + place % (_PLACES - before), _ITEM]]
        if item and length >= _END
        else []
        for length, _, _, _, item, place in values.params["rows"]
    ]


def _names(values: Values) -> list[list[str]]:
    rows = values.params["rows"]
    return [[*_ADAPTERS[row[2] % 4], _SALTS[row[3] % 3]] for row in rows]


def _prompt_lens(values: Values) -> list[int]:
    """Return the tokens of each prompt, at least half of all, with the whole items."""
    parts = 2 if values.params["appended"] else 1
    ends = [max((first + n for _, first, n in items), default=0) for items in _items(values)]
    return [
        max(end, -(-row[0] // parts)) for end, row in zip(ends, values.params["rows"], strict=True)
    ]


def _pairs() -> Iterator[Example]:
    """Yield pairs of requests that differ in one thing, and one that is as the first."""
    plain = [17, 17, 0, 0, 0, 0]
    kinds = {
        "adapters": [17, 17, 1, 0, 0, 0],
        "an adapter's path": [17, 17, 3, 0, 0, 0],
        "a salt like an adapter (#44701)": [17, 17, 0, 1, 0, 0],
        "an item": [17, 17, 0, 0, 1, 0],
        "another item": [17, 17, 0, 0, 2, 0],
        "an item one token behind": [17, 17, 0, 0, 1, 1],
        "an item behind a block": [17, 17, 0, 0, 1, 4],
        "the last token of a block": [17, 7, 0, 0, 0, 0],
        "the token behind a block": [17, 8, 0, 0, 0, 0],
    }
    for (name, row), (other, later) in combinations({"nothing": plain, **kinds}.items(), 2):
        for lookahead in (0, 1):
            sizes = {"rows": [row, later, row], "num_hash_lookahead_tokens": lookahead}
            yield f"{name} and {other}, lookahead {lookahead}", None, sizes
    for before in range(4):
        rows = [[17, 17, 0, 0, item, 4] for item in (1, 2)]
        sizes = {"rows": rows, "items_before": before, "appended": True}
        yield f"items behind {before} others, before the output", None, sizes


def _steps(batch: Batch) -> Iterator[Step]:
    totals = zip(batch.query_lens, batch.computed_lens, strict=True)
    yield batch, {"rows": [[min(64, q + c), min(64, c), 0, 0, 0, 0] for q, c in totals][:8]}


def _chained(_call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Require that blocks of one hash stand at one place, behind blocks of one hash."""
    behind: dict[int, tuple[int, ...]] = {}
    for row in outputs["numbers"]:
        for i, number in enumerate(row):
            if behind.setdefault(number, tuple(row[:i])) != tuple(row[:i]):
                yield Violation("numbers", "is the hash of a block behind another prefix")
                return


def _has_rows(case: Case) -> bool:
    return bool(case.params["rows"])


match_block_hashes = derive_built_in(
    reference,
    section="16",
    summary="which blocks of requests have one hash",
    values={
        "token_ids": _tokens,
        "prompt_lens": _prompt_lens,
        "items": _items,
        "names": _names,
        "hash_block_size": lambda values: values.params["hash_size"],
        "block_size": lambda values: values.params["hash_size"] * values.params["blocks"],
    },
    parameters={
        "rows": Parameter(_Rows, (_USUAL, []), _ROWS),
        "hash_size": one_of(Some, 4, 1, 2, 3),
        "blocks": one_of(Some, 1, 2, 3),
        "appended": one_of(bool, False, True),
        "items_before": one_of(Few, 0, 1, 2, 3, means="Items of one token before each row's own"),
        "num_hash_lookahead_tokens": one_of(_Number, 0, 1, 2),
    },
    examples=_pairs,
    steps=_steps,
    faults={
        "an entry less": Fault("names", lambda names: names[:-1], applies=_has_rows),
    },
    invariants=_chained,
    built_in=BuiltIn(shared="compares lists of Python objects: there is nothing to make faster"),
)

OPERATIONS = (match_block_hashes,)
