"""Chunks of prefills in which an indexer scores keys (SPEC.md section 22).

Both packages share it: it plans a step on the host, with a few numbers a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from ..definition.definition import operation
from ..definition.roles import Array, Int, Object

_Lengths = Annotated[torch.Tensor, Array("numbers", ("N",), least=0, on_cpu=True)]


def _fits_workspace(
    compressed_seq_lens_cpu: torch.Tensor, workspace_size: int
) -> Iterator[tuple[str, torch.Tensor, str]]:
    yield "compressed_seq_lens_cpu", compressed_seq_lens_cpu > workspace_size, "the workspace"


@operation(results=("chunks",), requires=(_fits_workspace,))
def split_indexer_prefill_chunks(
    compressed_seq_lens_cpu: _Lengths,
    prefill_query_lens_cpu: _Lengths,
    workspace_size: Annotated[int, Int(least=1)],
    max_logits_bytes: Annotated[int, Int(least=1)],
    request_offset: int = 0,
) -> Annotated[list[tuple[slice, slice]], Object()]:
    """Return runs of requests whose keys fit a workspace and whose scores fit a buffer.

    Lengths are (N,) int32 or int64 on the CPU, in rows of keys and of queries. A run has at most
    `workspace_size` keys and `max_logits_bytes` of float32 scores, one for each query and key; a
    request that has more scores is cut by its queries, into runs of at least one. Return slices of
    the requests, shifted by `request_offset`, and of a run's queries. Raise MetadataError for
    lengths below 0 or of more keys than the workspace, and sizes below 1. SPEC.md section 22.
    """
    keys, queries = compressed_seq_lens_cpu.tolist(), prefill_query_lens_cpu.tolist()
    most = max_logits_bytes // 4
    chunks: list[tuple[slice, slice]] = []
    start = 0
    while start < len(keys):
        end, num_keys, num_queries = start, 0, 0
        while end < len(keys):
            more_keys, more_queries = num_keys + keys[end], num_queries + queries[end]
            fits = more_keys <= workspace_size and more_keys * more_queries <= most
            if not fits and end > start:
                break
            end, num_keys, num_queries = end + 1, more_keys, more_queries
            if not fits:
                break
        rows = slice(start + request_offset, end + request_offset)
        size = max(1, most // num_keys if num_keys else num_queries)
        firsts = range(0, num_queries, size)
        chunks += [(rows, slice(first, min(first + size, num_queries))) for first in firsts]
        start = end
    return chunks
