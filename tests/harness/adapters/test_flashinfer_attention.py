"""Arguments of FlashInfer's wrappers, read by a stand-in that computes what they say on the CPU.

FlashInfer itself needs a GPU.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnproof import reference
from attnproof.harness.adapters import flashinfer_attention
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial


class Wrapper:
    """Attention over the pages of each request, from offsets, pages and lengths of last pages."""

    def __init__(self, workspace, layout, use_tensor_cores=True):
        assert (workspace.dtype, layout, use_tensor_cores) == (torch.uint8, "NHD", True)

    def run(self, query, caches, out):
        for row, (first, last) in enumerate(pairwise(self.pages[0])):
            pages = self.pages[1][first:last].long()
            length = (len(pages) - 1) * self.shape[3] + int(self.pages[2][row])
            keys, values = (
                c[pages].flatten(0, 1)[:length].double().transpose(0, 1) for c in caches
            )
            mine = slice(int(self.starts[row]), int(self.starts[row + 1]))
            rows = query[mine].double().transpose(0, 1)
            seen = torch.ones(rows.shape[1], length).tril(length - rows.shape[1]).bool()
            attended = scaled_dot_product_attention(
                rows, keys, values, attn_mask=seen, scale=self.scale, enable_gqa=True
            )
            out[mine] = attended.transpose(0, 1).to(out.dtype)
        return out


class Decode(Wrapper):
    def plan(self, indptr, indices, last, *shape, q_data_type, kv_data_type, sm_scale):
        self.pages, self.shape, self.scale = (indptr, indices, last), shape, sm_scale
        self.starts = torch.arange(len(indptr))
        assert {t.dtype for t in self.pages} == {torch.int32}


class Prefill(Wrapper):
    def plan(self, starts, *rest, causal, q_data_type, kv_data_type, sm_scale):
        self.starts, self.pages, self.shape, self.scale = starts, rest[:3], rest[3:], sm_scale
        assert causal
        assert {t.dtype for t in (starts, *self.pages)} == {torch.int32}


STAND_IN = SimpleNamespace(
    BatchDecodeWithPagedKVCacheWrapper=Decode, BatchPrefillWithPagedKVCacheWrapper=Prefill
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paged_attention", "decode_attention"])
def test_what_the_adapter_takes_is_right_and_the_rest_is_refused(name, monkeypatch):
    monkeypatch.setattr(flashinfer_attention, "_HEAD_SIZES", (32, 64, 128))
    function = getattr(flashinfer_attention, name)(STAND_IN)
    right, refused = 0, 0
    for boundary, case in ALL[name].inputs.boundaries():
        if case.params["far"] or case.num_tokens > 100:
            continue  # memory and seconds
        trial = Trial(ALL[name], case, function, getattr(reference, name), "cpu")
        diagnoses = {failure.diagnosis for failure in judge(trial).failures}
        assert diagnoses <= {"raises NotImplementedError on good input"}, boundary
        refused += len(diagnoses)
        right += not diagnoses
    assert refused
    assert right > refused / 2
