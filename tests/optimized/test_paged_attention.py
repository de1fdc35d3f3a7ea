"""Tests of paged attention: results against float64, tiles, and parts of the keys."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from attnproof import optimized, reference
from attnproof.harness.cases.layers.tolerance import close
from attnproof.optimized import dispatch
from attnproof.optimized.kernels import paged_attention_tiles as tiles

HOST = sys.modules["attnproof.optimized.host.paged_attention"]
TOOL = Path(__file__).parents[2] / "tools" / "attention_tiles.py"
F16, BF16 = torch.float16, torch.bfloat16


def agree(layer, *, decodes=False, out_dtype=None, **more):
    """Compute attention in both packages; require results within tolerance and no other write."""
    dtype = layer.query.dtype
    expected = torch.full(layer.query.shape, 7.0, dtype=torch.float64)
    got = torch.full(layer.query.shape, 7.0, dtype=out_dtype or dtype)
    for package, out in ((reference, expected), (optimized, got)):
        (layer.decode if decodes else layer.attend)(package, out, **more)
    assert close(expected, got.to(dtype))
    last = len(got) if decodes else int(layer.query_start_loc[-1])
    assert bool((got[last:] == 7).all())


@pytest.mark.parametrize(
    ("dtype", "window", "cap"),
    [(F16, None, None), (F16, 17, 2.0), (BF16, None, 2.0), (BF16, 1, None), (BF16, 32, None)],
)
def test_mixed_batches(layers, dtype, window, cap):
    layer = layers.make_layer([1, 5, 0, 3], [40, 5, 4, 12], heads=(4, 2), dtype=dtype)
    layer.write(reference)
    agree(layer, sliding_window=window, logits_soft_cap=cap)


@pytest.mark.parametrize(
    ("lens", "out_dtype", "window"),
    [
        (([1], [600]), None, None),
        (([1, 2], [300, 520]), torch.float32, 200),
        (([2, 0, 1], [513, 0, 1]), torch.float64, None),
    ],
)
def test_long_sequences(layers, lens, out_dtype, window):
    layer = layers.make_layer(*lens, heads=(3, 1))
    layer.write(reference)
    agree(layer, out_dtype=out_dtype, sliding_window=window)


@pytest.mark.parametrize(
    ("heads", "head_size"), [((1, 1), 40), ((5, 1), 72), ((8, 2), 256), ((71, 1), 32)]
)
def test_heads(layers, heads, head_size):
    layer = layers.make_layer([3, 1], [9, 20], heads=heads, head_size=head_size)
    layer.write(reference)
    agree(layer)


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("length", [40, 600])
def test_nan_of_a_query_or_a_key_is_not_hidden(layers, length):
    layer = layers.make_layer([1], [length], heads=(2, 1))
    layer.write(reference)
    out = torch.zeros_like(layer.query)
    layer.query[0, 0, 3] = torch.nan
    layer.attend(optimized, out)
    assert bool(out[0, 0].isnan().all())
    assert bool(out[0, 1].isfinite().all())
    layer.kv_cache[0, layer.block_table[0, 0], 5] = torch.nan
    layer.attend(optimized, out)
    assert bool(out.isnan().all())


@pytest.mark.skipif(dispatch.INTERPRETED, reason="only the host code has pieces")
def test_pieces_of_a_long_sequence_on_the_host(layers, monkeypatch):
    monkeypatch.setattr(HOST, "_MOST_KEYS", 32)
    monkeypatch.setattr(HOST, "_MOST_SCORES", 300)
    layer = layers.make_layer([70, 1], [200, 90], heads=(4, 2))
    layer.write(reference)
    agree(layer)
    agree(layer, sliding_window=40)
    agree(layer, sliding_window=3, logits_soft_cap=1.0)


@pytest.mark.parametrize("head_size", [8, 32, 40, 64, 72, 96, 128, 256, 512, 1000])
@pytest.mark.parametrize("target", ["hip", "sm80", "sm90"])
@pytest.mark.parametrize("rows", [1, 4, 17, 64, 1 << 20])
@pytest.mark.parametrize("aligned", [True, False])
def test_every_head_size_has_tiles(head_size, target, rows, aligned):
    made = tiles.tiles_for(head_size, rows, target, aligned=aligned)
    assert made.head >= max(16, head_size)
    assert made.rows >= 16 <= made.keys
    assert made.rows & (made.rows - 1) == made.keys & (made.keys - 1) == 0
    assert made.rows * made.head <= max(16384, 16 * made.head)


@pytest.mark.parametrize(
    ("programs", "keys", "splits"),
    [
        (8, 100_000, 48),  # one wave of 384 programs on 396 places
        (64, 32_768, 6),
        (512, 8192, 3),  # 1,536 programs in 4 waves: 1,024 would take 3 of their length
        (8, 1024, 4),
        (4096, 1024, 1),
        (1, 0, 1),
    ],
)
def test_parts_of_the_keys_fill_whole_waves(monkeypatch, programs, keys, splits):
    monkeypatch.setattr(tiles, "_processors", lambda _device: 132)
    sizes = tiles.tiles_for(128, 4, "sm90", aligned=True)._replace(resident=3)
    assert tiles.splits_for(programs, keys, sizes, torch.device("cuda")) == splits
    of_prefills = sizes._replace(rows=128)
    few = programs < 396
    assert few or tiles.splits_for(programs, keys, of_prefills, torch.device("cuda")) == 1


class TestTableOfTiles:
    """The script that makes the table of tiles."""

    @pytest.fixture
    def tool(self):
        spec = importlib.util.spec_from_file_location("attention_tiles", TOOL)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_the_table_follows_from_the_stored_resources(self, tool):
        assert tool.problems() == []

    @pytest.mark.parametrize(
        ("change", "sizes"),
        [
            ({}, (16, 64, 4, 5)),
            ({"stack_bytes": 64}, (16, 64, 4, 4)),
            ({"shared_bytes": 1 << 20}, 0),
        ],
        ids=["fits", "spills", "does not fit"],
    )
    def test_the_first_candidate_that_fits_is_chosen(self, tool, change, sizes):
        cost = {"registers": 168, "shared_bytes": 72192, "stack_bytes": 0}

        def cost_of(_cell, tried):
            return cost | change if tried[3] == 5 or "shared_bytes" in change else cost

        cell = "sm90", 128, 16
        if not sizes:
            with pytest.raises(ValueError, match="no candidate fits"):
                tool.chosen(cell, cost_of)
        else:
            row = tool.chosen(cell, cost_of)
            assert tuple(row.values()) == (*sizes, 3, tool.BY_RESOURCES)

    def test_the_fastest_of_the_neighbours_is_chosen(self, tool):
        cost = {"registers": 100, "shared_bytes": 40000, "stack_bytes": 0}
        row = tool.row_of((64, 64, 4, 3), 3, tool.BY_RESOURCES)
        tried = []

        def time_of(_cell, sizes, programs):
            tried.append((sizes, programs))
            return abs(sizes[1] - 30) + sizes[2] + sizes[3]

        best = tool.fastest(("sm90", 128, 128), row, lambda *_: cost, time_of, "measured on this")
        assert tuple(best.values()) == (64, 32, 4, 3, 4, "measured on this")
        assert ((64, 64, 8, 3), 2) in tried
        assert ((128, 64, 4, 3), 4) in tried


@pytest.mark.skipif(not dispatch.INTERPRETED, reason="xformers' operator takes no CPU tensors")
class TestXformers:
    """Decodes that xformers' operator computes, and their results."""

    @pytest.fixture
    def used(self, monkeypatch):
        module = sys.modules["attnproof.optimized.paged_attention"]
        calls, attend = [], module.attend_with_xformers

        def noted(*args):
            calls.append(args)
            attend(*args)

        monkeypatch.setattr(module, "attend_with_xformers", noted)
        return calls

    def _mask(self, layer, seq_lens, page_size=16):
        bias = pytest.importorskip("xformers.ops.fmha.attn_bias")
        return bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
            q_seqlen=[1] * len(seq_lens),
            kv_seqlen=seq_lens,
            page_size=page_size,
            block_tables=layer.block_table,
            device=torch.device("cpu"),
        )

    @pytest.mark.parametrize(
        ("shape", "more", "by_xformers"),
        [
            ({}, {}, True),
            ({"heads": (4, 1), "head_size": 64}, {}, True),
            ({"heads": (2, 2), "head_size": 32}, {"sliding_window": 40}, True),
            ({}, {"sliding_window": 39}, False),
            ({}, {"logits_soft_cap": 2.0}, False),
            ({"head_size": 40}, {}, False),
            ({"dtype": BF16}, {}, False),
            ({}, {"out_dtype": torch.float32}, False),
            ({"cache_dtype": torch.float8_e4m3fn}, {}, False),
        ],
    )
    def test_where_it_can(self, layers, used, shape, more, by_xformers):
        seq_lens = [5, 40]
        layer = layers.make_layer([1, 1], seq_lens, **{"heads": (4, 2), "head_size": 32} | shape)
        layer.write(reference)
        agree(layer, decodes=True, attn_bias=self._mask(layer, seq_lens), **more)
        assert bool(used) is by_xformers

    def test_not_for_requests_without_a_key_or_another_mask(self, layers, used):
        layer = layers.make_layer([1, 1], [5, 40], heads=(4, 2), head_size=32)
        layer.write(reference)
        layer.seq_lens[0] = 0
        for mask in (self._mask(layer, [0, 40]), self._mask(layer, [5, 40], 32), None, "mask"):
            agree(layer, decodes=True, attn_bias=mask)
        assert not used

    def test_not_for_more_programs_than_a_grid_has(self, layers):
        layer = layers.make_layer([1, 1], [5, 40], heads=(16, 8), head_size=32)
        decode = sys.modules["attnproof.optimized.xformers_decode"]
        for rows, fits in ((8191, True), (8192, False)):
            mask = self._mask(layer, [40] * rows)
            mask.block_tables = layer.block_table[:1].expand(rows, -1)
            query = layer.query[:1].expand(rows, -1, -1)
            caches, table = layer.kv_cache.unbind(), mask.block_tables
            a = HOST.Attention(
                query, *caches, None, mask.k_seqinfo.seqlen, table, 1.0, 1, 40, *[None] * 4, query
            )
            assert decode.xformers_attends(a, mask) is fits
