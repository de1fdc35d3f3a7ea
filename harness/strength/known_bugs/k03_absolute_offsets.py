"""K3, erratum E3: a slice cut at both ends mixes absolute and rebased offsets."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.interface import UBatchSlice
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug("K3", "_make_metadata_with_slice", "erratum E3", ("not rebased",))


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """The tail is cut with an offset that has been rebased and a token index that has not."""
    child = reference._make_metadata_with_slice(ubatch_slice, attn_metadata)
    first, last = ubatch_slice.request_slice.start, ubatch_slice.request_slice.stop
    t0, t1 = ubatch_slice.token_slice.start, ubatch_slice.token_slice.stop
    offsets = attn_metadata.query_start_loc_cpu
    cut_tail = t1 < int(offsets[last])
    rebased = int(offsets[last]) - t0
    if not (cut_tail and t0 > int(offsets[first])):
        return child
    end = rebased - max(0, rebased - t1)
    seq_lens = child.seq_lens.clone()
    seq_lens[-1] += end - int(child.query_start_loc[-1])
    return replace(
        child,
        query_start_loc=_with_end(child.query_start_loc, end),
        query_start_loc_cpu=_with_end(child.query_start_loc_cpu, end),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.cpu(),
    )


def _with_end(offsets: torch.Tensor, end: int) -> torch.Tensor:
    changed = offsets.clone()
    changed[-1] = end
    return changed
