"""Make the index of operations that `attnproof list` prints.

python -m attnproof.harness.verbs.operation_index
"""

from __future__ import annotations

import msgspec

from attnproof.harness.model.candidate import OPTIMIZED, Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import CONTRACTS
from attnproof.harness.report.catalogue import Entry, entry_of
from attnproof.harness.running.candidates import BUILT_IN
from attnproof.harness.running.loading import load, offered_by
from attnproof.harness.verbs.operation_table import INDEX, Index, OracleRow, Row

_LETTERS = dict(zip(CONTRACTS, "PEDQSICUGRO", strict=True))


def built_in_index() -> Index:
    """Return the index with the offers of the built-in candidates."""
    module = load(Candidate("optimized", OPTIMIZED))
    offered = {name for name, op in ALL.items() if offered_by(module, op) is not None}
    offers = {
        candidate.name: {name: offer(candidate, op, name in offered) for name, op in ALL.items()}
        for candidate in BUILT_IN
    }
    return index_of([entry_of(operation) for operation in ALL.values()], offers)


def index_of(entries: list[Entry], offers: dict[str, dict[str, str]]) -> Index:
    """Return the index of these operations; `offers` is by candidate, then by operation."""
    rows = [
        Row(
            section=entry.operation.section,
            name=entry.operation.name,
            summary=entry.operation.summary,
            interfaces=entry.engines,
            oracles=_letters(entry),
            offers={name: words[entry.operation.name] for name, words in offers.items()},
        )
        for entry in entries
    ]
    return Index(
        rows, [OracleRow(_LETTERS[name], name, contract) for name, contract in CONTRACTS.items()]
    )


def offer(candidate: Candidate, operation: Operation, offered: bool) -> str:
    """Return what the candidate offers of the operation in one or two words."""
    if not offered:
        return "not offered"
    if candidate.kernels_only:
        return "kernels" if operation.built_in.kernels else "host only"
    shared = operation.built_in.shared and candidate.target == OPTIMIZED
    return "shared" if shared else "offered"


def _letters(entry: Entry) -> str:
    return "".join(letter if name in entry.oracles else "-" for name, letter in _LETTERS.items())


def encoded(index: Index) -> bytes:
    """Return the text of the index's file."""
    return msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n"


if __name__ == "__main__":
    INDEX.write_bytes(encoded(built_in_index()))
