"""Tests of the XFormers backend: worked examples, errata, and errors before any write."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from attnproof.harness.cases.layers.xformers_step import decode_mask
from attnproof.reference import MetadataError

BLOCK = 16
HEAD = 32
ONE = torch.ones(1)


def build(package, md, block_size=BLOCK):
    spec = SimpleNamespace(block_size=block_size)
    builder = package.XFormersAttentionMetadataBuilder(spec, ["layer.0"], None, torch.device("cpu"))
    return builder.build(0, md)


def layer(k_scale=1.0, v_scale=1.0):
    return SimpleNamespace(_k_scale=torch.tensor([k_scale]), _v_scale=torch.tensor([v_scale]))


def implementation(package, **constants):
    given = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"}
    return package.XFormersAttentionImpl(1, HEAD, 1.0, 1, **given | constants)


def tokens(*values):
    """Return (T, 1, HEAD) float16 with equal elements for each token."""
    return torch.tensor(values, dtype=torch.float16)[:, None, None].repeat(1, 1, HEAD)


@pytest.fixture
def one_request(make_metadata):
    """Decode of the last of three tokens, in block 1; values 1 and 2 are in the cache."""
    md = make_metadata([1], [3], [[1]], slot_mapping=torch.tensor([BLOCK + 2]))
    cache = torch.full((2, 3, BLOCK, 1, HEAD), torch.nan, dtype=torch.float16)
    cache[0, 1, :2] = 0
    cache[1, 1, :2] = tokens(1, 2)
    return md, cache


@pytest.mark.spec("Example, q = [1, 0, 3], s = [6, 4, 5], slots [9, 4, 5, 6] and two stale ones")
@pytest.mark.spec("E22: published views have counts of 0, cut no slots of graph padding")
def test_views_of_the_worked_example(package, make_metadata):
    slots = torch.tensor([9, 4, 5, 6, 77, 78])
    md = make_metadata([1, 0, 3], [6, 4, 5], [[2], [3], [4]], slot_mapping=slots)
    made = build(package, md)
    assert [made.num_decodes, made.num_decode_tokens] == [2, 1]
    assert [made.num_prefills, made.num_prefill_tokens] == [1, 3]
    decodes, prefills = made.decode_metadata, made.prefill_metadata
    assert decodes.query_start_loc.tolist() == [0, 1, 1]
    assert decodes.seq_lens.tolist() == [6, 4]
    assert decodes.slot_mapping.tolist() == [9]
    assert [decodes.num_decodes, decodes.num_decode_tokens, decodes.num_prefills] == [2, 1, 0]
    assert prefills.query_start_loc.tolist() == [0, 3]
    assert prefills.seq_lens.tolist() == [5]
    assert prefills.slot_mapping.tolist() == [4, 5, 6]
    assert [prefills.num_prefills, prefills.num_prefill_tokens, prefills.num_decodes] == [1, 3, 0]
    assert decodes.attn_bias is made.attn_bias
    assert prefills.attn_bias is None
    assert made.decode_metadata is decodes
    assert made.prefill_metadata is prefills


@pytest.mark.spec(
    "E26: xformers keeps the rows' offsets in int32. Where rows times room do not fit, as with"
    " 256 decodes and a table for ten million tokens, published code raises an overflow"
)
def test_room_beyond_int32_has_no_mask(package, make_metadata):
    md = make_metadata([1] * 2, [5, 6], [[1] * 1024] * 2)
    assert build(package, md, 2**20).attn_bias is None


@pytest.mark.spec("Example: where all scores are equal, a query gets the mean of the values")
@pytest.mark.spec("E14: the published decode branch ignores sliding window and soft cap")
@pytest.mark.parametrize(("window", "mean"), [(None, 3), (2, 4), (1, 6)])
def test_window_of_a_decode(package, one_request, window, mean):
    md, cache = one_request
    impl = implementation(package, sliding_window=window)
    assert impl.sliding_window == ((-1, -1) if window is None else (window - 1, 0))
    out = torch.zeros(1, 1, HEAD, dtype=torch.float16)
    step = (tokens(1), tokens(0), tokens(6), cache, build(package, md), out)
    assert impl.forward(layer(), *step) is out
    assert out.unique().tolist() == [mean]
    assert cache[1, 1, 2].unique().tolist() == [6]


@pytest.mark.spec("E14: the published decode branch ignores sliding window and soft cap")
def test_soft_cap_of_a_decode(package, one_request):
    md, cache = one_request
    cache[0, 1, 1] = 50  # without the cap, this score outweighs all others
    capped, plain = (torch.zeros(1, 1, HEAD, dtype=torch.float32) for _ in range(2))
    for cap, out in ((0.01, capped), (None, plain)):
        impl = implementation(package, logits_soft_cap=cap)
        impl.forward(layer(), tokens(1), tokens(0), tokens(6), cache, build(package, md), out)
    assert capped.unique().tolist() == pytest.approx([3], abs=0.02)
    assert plain.unique().tolist() == pytest.approx([2], abs=0.01)


@pytest.mark.spec("E23: a row without a query among the decodes (graph padding, idle rows) fails")
def test_rows_without_a_query_and_tokens_outside_every_row_get_no_output(package, make_metadata):
    slots = torch.tensor([BLOCK, -1])
    fields = {"num_actual_tokens": 2, "slot_mapping": slots}
    md = make_metadata([1, 0], [1, 0], [[1], [0]], **fields)
    cache = torch.full((2, 3, BLOCK, 1, HEAD), torch.nan, dtype=torch.float16)
    out = torch.full((2, HEAD), 9, dtype=torch.float16)
    step = (tokens(1, torch.nan), tokens(0, torch.nan), tokens(6, torch.nan))
    implementation(package).forward(layer(), *step, cache, build(package, md), out)
    assert out[0].unique().tolist() == [6]
    assert out[1].unique().tolist() == [9]


@pytest.mark.spec("E24: published `forward` writes the cache for every entry of slot_mapping")
def test_stale_slots_after_the_tokens_write_nothing(package, one_request):
    md, cache = one_request
    md = replace(md, slot_mapping=torch.tensor([BLOCK + 2, 0, 10**6]))
    out = torch.zeros(3, 1, HEAD, dtype=torch.float16)
    step = (tokens(1, 1, 1), tokens(0, 8, 8), tokens(6, 8, 8))
    implementation(package).forward(layer(), *step, cache, build(package, md), out)
    assert cache[:, 0].isnan().all()
    assert out[:, 0, 0].tolist() == [3, 0, 0]


@pytest.mark.spec("E25: the published decode branch hands an fp8 cache to xformers as it is")
def test_scales_of_an_fp8_cache_are_applied(package, one_request):
    md, cache = one_request
    quantised = torch.where(cache.isnan(), cache, cache * 2).to(torch.float8_e4m3fn)
    out = torch.zeros(1, 1, HEAD, dtype=torch.float16)
    impl = implementation(package, kv_cache_dtype="fp8")
    step = (tokens(1), tokens(0), tokens(6), quantised, build(package, md), out)
    impl.forward(layer(v_scale=0.5), *step)
    assert out.unique().tolist() == [3]
    assert quantised[1, 1, 2].float().unique().tolist() == [12]


def test_a_mask_equals_that_of_xformers_own_constructor(package, make_metadata):
    pytest.importorskip("xformers")
    md = make_metadata([1, 0, 1, 4], [7, 3, 1, 9], [[1, 2], [3, 4], [5, 6], [7, 8]])
    ours, theirs = build(package, md, 8).attn_bias, decode_mask(md, 3, 8)
    for part in ("q_seqinfo", "k_seqinfo"):
        one, other = vars(getattr(ours, part)), vars(getattr(theirs, part))
        assert one.keys() == other.keys()
        for name, value in other.items():
            same = torch.equal(one[name], value) if hasattr(value, "dtype") else one[name] == value
            assert same, (part, name)
    assert torch.equal(ours.block_tables, theirs.block_tables)
    assert ours.page_size == theirs.page_size


@pytest.mark.parametrize(
    ("constants", "error"),
    [
        ({"kv_sharing_target_layer_name": "layer.0"}, NotImplementedError),
        ({"alibi_slopes": [0.5]}, NotImplementedError),
        ({"attn_type": "encoder"}, NotImplementedError),
        ({"sliding_window": 0}, MetadataError),
        ({"logits_soft_cap": -1.0}, MetadataError),
    ],
)
def test_unsupported_layers_are_errors(package, constants, error):
    with pytest.raises(error):
        implementation(package, **constants)


def test_an_error_of_attention_is_raised_before_the_cache_is_written(package, one_request):
    md, cache = one_request
    before = cache.clone()
    made = replace(build(package, md), block_table=torch.tensor([[3]], dtype=torch.int32))
    out = torch.zeros(1, 1, HEAD, dtype=torch.float16)
    with pytest.raises(MetadataError, match="block 3"):
        implementation(package).forward(layer(), *[tokens(1)] * 3, cache, made, out)
    assert torch.equal(cache.view(torch.int16), before.view(torch.int16))


def test_profiling_runs_and_fused_quantisation(package):
    impl, out = implementation(package), torch.zeros(2, HEAD)
    assert impl.forward(None, None, None, None, None, None, out) is out
    with pytest.raises(NotImplementedError, match="quantisation"):
        impl.forward(None, None, None, None, None, None, out, ONE)
    with pytest.raises(MetadataError, match="output"):
        impl.forward(None, None, None, None, None, None)


def test_backend(package):
    backend = package.XFormersAttentionBackend
    assert backend.get_name() == "XFORMERS_VLLM_V1"
    assert backend.get_kv_cache_shape(7, 32, 4, 40) == (2, 7, 32, 4, 40)
    with pytest.raises(MetadataError, match="multiple of 16"):
        backend.get_kv_cache_shape(7, 24, 4, 40)
    with pytest.raises(ValueError, match=r"32, 40, .*, 256"):
        backend.validate_head_size(33)
    assert backend.get_impl_cls() is package.XFormersAttentionImpl
    assert backend.swap_blocks is package.swap_blocks
