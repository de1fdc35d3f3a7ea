"""Operations at the edges of what declarations say: narrow dtypes, scalars, names of parameters."""

from itertools import pairwise
from typing import Annotated

import numpy as np
import torch

from attnproof.define import (
    Array,
    BlockTable,
    ComputedLens,
    Int,
    MaxSeqLen,
    Offsets,
    Positions,
    QueryLens,
    RequestIndices,
    SeqLens,
    Slots,
    operation,
)

T = torch.Tensor
I8 = Annotated[T, Array(shape=("N",), dtype=torch.int8)]
U8 = Annotated[T, Array(shape=("N",), dtype=torch.uint8)]


@operation
def narrow(a: I8, b: U8, c: Annotated[T, Array()]) -> Annotated[T, Array(shape=("N",))]:
    """Return sums of narrow integers."""
    return a.long() + b.long() + c


@operation
def halves(
    x: Annotated[T, Array("data", ("R", 4), dtype=torch.bfloat16)], seq_lens: SeqLens
) -> Annotated[T, Array("data", ("R",), dtype=torch.bfloat16, tolerance=1e-2)]:
    """Return row sums."""
    return x.double().sum(-1) + seq_lens


@operation
def nothing_but_numbers(
    a: int, b: Annotated[int, Int(least=-5, below=5)], c: Annotated[int, Int(least=3, below=4)]
) -> int:
    """Return a sum."""
    return a + b + c


@operation
def twice_size(
    n: Annotated[int, Int("axis", axis="N")], a: Annotated[T, Array(shape=("2*N+1",))]
) -> Annotated[T, Array(shape=("N",))]:
    """Return the first."""
    return a[:n].clone()


@operation
def mirrored(
    seq_lens: SeqLens,
    seq_lens_cpu: Annotated[T, Array("sequence lengths", on_cpu=True)],
    max_seq_len: MaxSeqLen,
    slots: Slots,
    req: RequestIndices,
    pos: Positions,
    q: QueryLens,
    c: ComputedLens,
) -> tuple[int, Annotated[T, Array(shape=("T",))]]:
    """Return a sum."""
    return int(seq_lens_cpu.sum()) + max_seq_len, slots + req + pos


@operation
def no_result_dims(seq_lens: SeqLens) -> Annotated[T, Array()]:
    """Return the total."""
    return seq_lens.sum().to(torch.int64)


@operation
def opt(seq_lens: SeqLens | None = None, n: int | None = None) -> int | None:
    """Return something."""
    return None if seq_lens is None else int(seq_lens.sum()) + (n or 0)


@operation(independent=True)
def pool(
    block_table: BlockTable,
    seq_lens: SeqLens,
    num_blocks: Annotated[int, Int("axis", axis="P", least=1)],
    scores: Annotated[T, Array(shape=("P",))],
) -> Annotated[T, Array(shape=("R",))]:
    """Return a score by length."""
    return torch.stack([*[scores[n % num_blocks] for n in seq_lens.tolist()], scores[0]])[:-1].to(
        scores.dtype
    )


@operation(independent=True)
def padded_to(
    query_start_loc: Offsets, n: Annotated[int, Int("axis", axis="P", least="R")]
) -> Annotated[T, Array(shape=("P",))]:
    """Return the query lengths, padded with 0."""
    return torch.cat(
        [query_start_loc.diff(), query_start_loc.new_zeros(n - len(query_start_loc) + 1)]
    )


@operation
class Parameters:
    """Have arguments that are called as parameters of cases are."""

    def __init__(self, steps: int, layout: int) -> None:
        self.total = steps + layout

    def add(self, do: I8, steps: int, order: int, size_n: int) -> int:
        """Add numbers."""
        self.total += int(do.sum()) + steps + order + size_n
        return self.total


@operation(independent=True)
def less_the_first(seq_lens: SeqLens) -> Annotated[T, Array(shape=("R",))]:
    """Return the lengths less the first one, which is another row."""
    return seq_lens - seq_lens[:1] if len(seq_lens) else seq_lens.clone()


Pages = Annotated[T, Array(shape=("E",))]


@operation(
    values={
        "lengths": lambda v: np.minimum(v.batch.seq_lens, v.params["most"]),
        "indptr": lambda v: np.append(0, np.cumsum(v["lengths"])),
        "E": lambda v: int(v["indptr"][-1]) + v.params["more"],
        "pages": lambda v: np.arange(v.sizes["E"]) % 7,
        "scale": lambda v: v.params["factor"] if v.sizes["R"] else None,
    },
    choices={"most": (4, 0, 1), "factor": (3, 7), "more": (0, 2)},
)
def page_sums(
    seq_lens: SeqLens,
    lengths: Annotated[T, Array(shape=("R",))],
    indptr: Annotated[T, Array(shape=("R+1",))],
    pages: Pages,
    scale: int | None = None,
) -> Annotated[T, Array(shape=("R",))]:
    """Return the sum of each row's pages."""
    ends = indptr.tolist()
    assert ends == [0, *np.cumsum(lengths.tolist())], "offsets of other lengths"
    assert ends[-1] <= len(pages)
    sums = [int(pages[a:b].sum()) * (scale or 1) for a, b in pairwise(ends)]
    return torch.tensor(sums, dtype=torch.int64)


@operation(state=("rows",))
class Slots2D:
    """Keep the last block table of each step's batch."""

    def __init__(self, block_size: int) -> None:
        self.block_size, self.rows = block_size, 0
        self.table = torch.zeros((0, 0), dtype=torch.int64)

    def commit(self, block_table: BlockTable, seq_lens: SeqLens) -> None:
        """Copy the live blocks."""
        self.rows = len(seq_lens)
        self.table = block_table.clone().long()

    def first(self, row: int) -> int:
        """Return the row's first block, -1 without one."""
        inside = row < self.rows and self.table.shape[1] > 0
        return int(self.table[row, 0]) if inside else -1

    def tokens(self, query_start_loc: Offsets) -> int:
        """Return the tokens of a batch and the rows of the last one."""
        return int(query_start_loc[-1]) + self.rows
