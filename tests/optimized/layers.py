"""Inputs of one layer's forward pass on any device, for tests of the attention kernels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import torch

from attnproof import reference

FP8 = torch.float8_e4m3fn


@dataclass
class Layer:
    """Queries, new keys and values, the cache, and the metadata of one forward pass."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    kv_cache: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    k_scale: torch.Tensor
    v_scale: torch.Tensor
    max_query_len: int
    max_seq_len: int

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.query.shape[-1] ** -0.5)

    @property
    def kv_cache_dtype(self) -> str:
        """Name of the cache's dtype as engines pass it."""
        return "fp8" if self.kv_cache.dtype == FP8 else "auto"

    def to(self, device: str) -> Layer:
        """Return a copy on `device`."""
        moved = {
            name: value.clone().to(device) if isinstance(value, torch.Tensor) else value
            for name, value in vars(self).items()
        }
        return Layer(**moved)

    def write(self, package: object) -> None:
        """Write the new keys and values to the cache."""
        package.reshape_and_cache_flash(
            self.key,
            self.value,
            *self.kv_cache.unbind(),
            self.slots,
            self.kv_cache_dtype,
            self.k_scale,
            self.v_scale,
        )

    def attend(self, package: object, out: torch.Tensor, **more: object) -> torch.Tensor:
        """Compute attention of all queries, prefills and decodes alike."""
        package.paged_attention(
            self.query,
            *self.kv_cache.unbind(),
            self.query_start_loc,
            self.seq_lens,
            self.block_table,
            self.scale,
            max_query_len=self.max_query_len,
            max_seq_len=self.max_seq_len,
            **self._scales(),
            **more,
            out=out,
        )
        return out

    def decode(self, package: object, out: torch.Tensor, **more: object) -> torch.Tensor:
        """Compute attention of one query a request."""
        package.decode_attention(
            self.query,
            *self.kv_cache.unbind(),
            self.seq_lens,
            self.block_table,
            self.scale,
            max_seq_len=self.max_seq_len,
            **self._scales(),
            **more,
            out=out,
        )
        return out

    def _scales(self) -> dict[str, torch.Tensor]:
        held = self.kv_cache.dtype == FP8
        return {"k_scale": self.k_scale, "v_scale": self.v_scale} if held else {}


def make_layer(
    query_lens: list[int],
    seq_lens: list[int],
    *,
    heads: tuple[int, int] = (4, 2),
    head_size: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float16,
    cache_dtype: torch.dtype | None = None,
    width: int = 0,
    seed: int = 0,
) -> Layer:
    """Return the inputs on the CPU; the cache holds the computed tokens, NaN elsewhere.

    `heads` are the numbers of query and kv heads, `width` the columns of the block table,
    0 for as many as needed. Block ids are shuffled and unique.
    """
    random = torch.Generator().manual_seed(seed)
    rows, tokens = len(seq_lens), sum(query_lens)
    width = width or max([1, *(-(-s // block_size) for s in seq_lens)])
    starts = torch.tensor([0, *torch.tensor(query_lens).cumsum(0)], dtype=torch.int32)
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    computed = lengths - torch.tensor(query_lens, dtype=torch.int32)
    table = torch.randperm(rows * width, generator=random).reshape(rows, width).int()
    slots = reference.build_slot_mapping(starts, computed, table, block_size)
    shape = (heads[1], head_size)
    held = torch.randn(2, rows * width * block_size, *shape, generator=random)
    layer = Layer(
        query=torch.randn(tokens, heads[0], head_size, generator=random).to(dtype),
        key=held[0, slots].to(dtype),
        value=held[1, slots].to(dtype),
        kv_cache=torch.empty(0),
        query_start_loc=starts,
        seq_lens=lengths,
        block_table=table,
        slots=slots,
        k_scale=torch.tensor([0.05]),
        v_scale=torch.tensor([0.5]),
        max_query_len=max(query_lens, default=0),
        max_seq_len=max(seq_lens, default=0),
    )
    layer.kv_cache = _cache(held.to(dtype), layer, computed.tolist(), block_size, cache_dtype)
    return layer


def _cache(
    held: torch.Tensor,
    layer: Layer,
    computed: list[int],
    block_size: int,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Return (2, num_blocks, B, Hkv, D) with the computed tokens, NaN elsewhere."""
    cache = torch.full_like(held, torch.nan)
    for blocks, length in zip(layer.block_table.tolist(), computed, strict=True):
        for position in range(length):
            slot = blocks[position // block_size] * block_size + position % block_size
            cache[:, slot] = held[:, slot]
    if dtype is not None:
        scales = torch.stack([layer.k_scale, layer.v_scale]).reshape(2, 1, 1, 1)
        cache = (cache.float() / scales).to(dtype)
    return cache.reshape(2, -1, block_size, *held.shape[2:])


def metadata_of(layer: Layer) -> reference.CommonAttentionMetadata:
    """Return the metadata of the layer's batch."""
    starts, lengths = layer.query_start_loc.cpu(), layer.seq_lens.cpu()
    queries = torch.tensor([end - start for start, end in pairwise(starts.tolist())])
    return reference.CommonAttentionMetadata(
        query_start_loc=layer.query_start_loc,
        query_start_loc_cpu=starts,
        seq_lens=layer.seq_lens,
        seq_lens_cpu=lengths,
        num_computed_tokens_cpu=(lengths - queries).int(),
        num_reqs=len(lengths),
        num_actual_tokens=int(starts[-1]),
        max_query_len=layer.max_query_len,
        max_seq_len=layer.max_seq_len,
        block_table_tensor=layer.block_table,
        slot_mapping=layer.slots,
    )


def backend_parts(package: object, layer: Layer) -> tuple[object, object, SimpleNamespace]:
    """Return the XFormers builder, the implementation, and a stand-in of the engine's layer."""
    backend = package.XFormersAttentionBackend
    block_size, heads, head_size = layer.kv_cache.shape[2:]
    device = layer.query.device
    config = SimpleNamespace(speculative_config=None)
    builder = backend.get_builder_cls()(
        SimpleNamespace(block_size=block_size), ["layer.0"], config, device
    )
    impl = backend.get_impl_cls()(
        layer.query.shape[1], head_size, layer.scale, heads, None, None, layer.kv_cache_dtype
    )
    engine_layer = SimpleNamespace(
        _q_scale=layer.k_scale,
        _k_scale=layer.k_scale,
        _v_scale=layer.v_scale,
        _k_scale_float=float(layer.k_scale),
        _v_scale_float=float(layer.v_scale),
    )
    return builder, impl, engine_layer
