"""Operations whose definitions have what declarations can say."""

from typing import Annotated

import torch

from attnproof.define import (
    Array,
    BlockSize,
    BlockTable,
    Int,
    MetadataError,
    Offsets,
    Positions,
    SeqLens,
    operation,
)

Tensor = torch.Tensor


@operation(independent=True)
def positions_of(query_start_loc: Offsets, seq_lens: SeqLens) -> Positions:
    """Return the position in its sequence of each query token."""
    offsets, lengths = query_start_loc.tolist(), seq_lens.tolist()
    positions: list[int] = []
    for row, length in enumerate(lengths):
        positions += range(length - (offsets[row + 1] - offsets[row]), length)
    return torch.tensor(positions, dtype=torch.int64)


@operation(independent=True)
def fill_slots(
    query_start_loc: Offsets,
    seq_lens: SeqLens,
    block_table: BlockTable,
    block_size: BlockSize,
    out: Annotated[Tensor, Array("slots", written=True, longer=True)],
) -> None:
    """Fill the slot of each query token; entries behind them stay."""
    offsets, table = query_start_loc.tolist(), block_table.tolist()
    slots: list[int] = []
    for row, length in enumerate(seq_lens.tolist()):
        for position in range(length - (offsets[row + 1] - offsets[row]), length):
            block = table[row][position // block_size]
            slots.append(block * block_size + position % block_size)
    out[: len(slots)] = torch.tensor(slots)


@operation
def chosen(
    values: Annotated[Tensor, Array(shape=("N",))],
    mask: Annotated[Tensor, Array("flags", ("N",))] | None = None,
    *,
    most: Annotated[int, Int(least=1)] = 4,
    backwards: bool = False,
) -> tuple[Annotated[Tensor, Array(shape=("?",))], int]:
    """Return the chosen values, at most so many, and how many there are."""
    kept = [v for i, v in enumerate(values.tolist()) if mask is None or bool(mask[i])]
    kept = kept[::-1] if backwards else kept
    return torch.tensor(kept[:most], dtype=torch.int64), len(kept)


@operation(independent=True)
def scaled(
    seq_lens: SeqLens, weights: Annotated[Tensor, Array("data", ("R",))]
) -> Annotated[Tensor, Array("data", ("R",), tolerance=1e-5)]:
    """Return each length times its weight."""
    return seq_lens.double() * weights.double()


def _in_pool(rows, num_rows):
    """Require even rows."""
    yield "rows", rows % 2 == 1, "even"


@operation(requires=(_in_pool,))
def gathered(
    rows: Annotated[Tensor, Array(shape=("N",), least=0, below="P")],
    pool: Annotated[Tensor, Array(shape=("P", 3), dtype=torch.int16)],
    order: Annotated[Tensor, Array(shape=("M",), least=0, below=50, distinct=True)],
    steps: Annotated[int, Int(least="N", below="N+9")],
    num_rows: Annotated[int, Int("axis", axis="P", least=1)],
) -> Annotated[Tensor, Array(shape=("N", 3), dtype=torch.int16)]:
    """Return the pool's rows."""
    return torch.stack([*[pool[row] for row in rows.tolist()], pool[0]])[:-1]


@operation(state=("total",))
class Window:
    """Keep the last numbers."""

    def __init__(self, capacity: Annotated[int, Int(least=1, below=9)]) -> None:
        self.capacity = capacity
        self.kept: list[int] = []
        self.total = 0

    def add(self, numbers: Annotated[Tensor, Array(shape=("N",), least=0, below=99)]) -> None:
        """Add numbers."""
        self.kept = [*self.kept, *numbers.tolist()][-self.capacity :]
        self.total += len(numbers)

    def last(self, count: int) -> Annotated[Tensor, Array(shape=("?",))]:
        """Return the last numbers."""
        return torch.tensor(self.kept[max(0, len(self.kept) - count) :], dtype=torch.int64)

    def write(self, out: Annotated[Tensor, Array(shape=(3,), written=True)]) -> int:
        """Write the first three; return how many there are."""
        count = min(3, len(self.kept))
        out[:count] = torch.tensor(self.kept[:count])
        return count


@operation(state=("num_free",))
class FreeBlocks:
    """Hand out blocks, the longest free ones first."""

    def __init__(self, num_blocks: Annotated[int, Int(least=1, below=65)] = 8) -> None:
        self.free_ids, self.used = list(range(num_blocks)), set[int]()
        self.num_free = num_blocks

    def alloc(self, count: int) -> Annotated[Tensor, Array(shape=("?",))]:
        """Return blocks that are used now; none if there are fewer."""
        count = count if count <= self.num_free else 0
        ids, self.free_ids = self.free_ids[:count], self.free_ids[count:]
        self.num_free -= count
        self.used |= set(ids)
        return torch.tensor(ids, dtype=torch.int64)

    def free(
        self, ids: Annotated[Tensor, Array(shape=("N",), least=0, below=64, distinct=True)]
    ) -> None:
        """Take back used blocks."""
        if not set(ids.tolist()) <= self.used:
            raise MetadataError("FreeBlocks.free", "ids", str(ids.tolist()), "used blocks")
        self.free_ids += ids.tolist()
        self.used -= set(ids.tolist())
        self.num_free += len(ids)
