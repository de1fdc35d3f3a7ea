"""Stand-ins for the objects that a first-generation (V0) builder and graph state read.

They have the attributes that SPEC.md's appendix A lists and no others, so a candidate that
reads any other attribute fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.model.case import Batch
from attnproof.reference.shared import AttentionMetadata


class IndexMap(NamedTuple):
    """Source and destination indices of the items of a modality."""

    src: list[int]
    dest: list[int]


@dataclass
class PlaceholderMap:
    """Ranges of a modality's embeddings (source) and of the batch's tokens (destination)."""

    src_ranges: list[range] = field(default_factory=list)
    src_len: int = 0
    dest_ranges: list[range] = field(default_factory=list)
    dest_len: int = 0

    def extend(self, other: PlaceholderMap) -> None:
        """Append the ranges of another map, shifted by this map's lengths."""
        self.src_ranges += _shifted(other.src_ranges, self.src_len)
        self.src_len += other.src_len
        self.dest_ranges += _shifted(other.dest_ranges, self.dest_len)
        self.dest_len += other.dest_len

    def index_map(self) -> IndexMap:
        """Expand both sides to lists of indices."""
        src, dest = (list(chain.from_iterable(r)) for r in (self.src_ranges, self.dest_ranges))
        return IndexMap(src, dest)


def _shifted(ranges: list[range], by: int) -> list[range]:
    return [range(span.start + by, span.stop + by) for span in ranges]


@dataclass
class InterData:
    """A sequence group."""

    is_prompt: bool
    seq_ids: list[int]
    input_tokens: list[list[int]]
    orig_seq_lens: list[int]
    seq_lens: list[int]
    query_lens: list[int]
    context_lens: list[int]
    curr_sliding_window_blocks: list[int]
    block_tables: dict[int, list[int] | None] | None
    prefix_cache_hit: bool = False
    multi_modal_placeholder_maps: dict[str, PlaceholderMap] = field(default_factory=dict)


_ROWS = ("seq_lens_tensor", "block_tables", "encoder_seq_lens_tensor", "cross_block_tables")
"""Tensors with one entry per row."""


@dataclass
class MetadataV0(AttentionMetadata):
    """V0 metadata with the fields of SPEC.md's appendix A; other keywords are a TypeError."""

    seq_lens: list[int] | None
    seq_lens_tensor: torch.Tensor | None
    max_query_len: int | None
    max_prefill_seq_len: int
    max_decode_seq_len: int
    query_start_loc: torch.Tensor | None
    seq_start_loc: torch.Tensor | None
    context_lens_tensor: torch.Tensor | None
    block_tables: torch.Tensor | None
    use_cuda_graph: bool
    max_decode_query_len: int | None = None
    encoder_seq_lens: Any = None
    encoder_seq_lens_tensor: torch.Tensor | None = None
    max_encoder_seq_len: int | None = None
    num_encoder_tokens: int | None = None
    cross_slot_mapping: torch.Tensor | None = None
    cross_block_tables: torch.Tensor | None = None

    @property
    def prefill_metadata(self) -> MetadataV0 | None:
        """View of the prompts, None without any."""
        if not self.num_prefills:
            return None
        rows = slice(0, self.num_prefills)
        return self._part(rows, slice(0, self.num_prefill_tokens), num_decode_tokens=0)

    @property
    def decode_metadata(self) -> MetadataV0 | None:
        """View of the decodes, None without any."""
        if not self.num_decode_tokens:
            return None
        tokens = slice(self.num_prefill_tokens, None)
        rows = slice(self.num_prefills, None)
        return self._part(rows, tokens, num_prefills=0, num_prefill_tokens=0)

    def _part(self, rows: slice, tokens: slice, **values: Any) -> MetadataV0:
        for name in _ROWS:
            tensor = getattr(self, name)
            values[name] = tensor if tensor is None else tensor[rows]
        return replace(self, slot_mapping=self.slot_mapping[tokens], **values)


class Backend:
    """Attention backend of the runner."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_name(self) -> str:
        """Return the registered name."""
        return self._name

    def make_metadata(self, **fields: Any) -> MetadataV0:
        """Make metadata from keywords."""
        return MetadataV0(**fields)


@dataclass
class Runner:
    """Model runner."""

    device: torch.device
    graph_block_tables: np.ndarray
    """(maximum batch size, maximum blocks) int32."""
    max_seq_len_to_capture: int = 4096
    pin_memory: bool = False
    attn_backend: Backend = field(default_factory=lambda: Backend("FLASH_ATTN"))

    def get_max_block_per_batch(self) -> int:
        """Return the maximum number of blocks of a sequence."""
        return int(self.graph_block_tables.shape[1])


@dataclass
class InputBuilder:
    """Builder of the model input of an engine step."""

    runner: Runner
    sliding_window: int | None
    block_size: int
    inter_data_list: list[InterData]
    chunked_prefill_enabled: bool


@dataclass(frozen=True)
class Step:
    """Engine options for running a batch as one V0 engine step."""

    pad_size: int = -1
    """Padded rows of a graph, -1 without one. With a graph every request is a decode."""
    chunked: bool = True
    """True for chunked prefill."""
    window: int = 0
    """Sliding window in tokens, 0 for none."""
    profile: int = 0
    """Kind of a profile run, which has prompts only, without context; 0 for none.

    1: block tables are None; 2: each sequence's table is None.
    """
    hits: tuple[int, ...] = ()
    """Rows of prompts whose first blocks come from the prefix cache."""
    last_chunks: tuple[int, ...] = ()
    """Rows of one token that are the last chunk of a prompt and not a decode."""
    images: tuple[int, ...] = ()
    """Rows of prompts with an image."""
    whole: tuple[int, ...] = ()
    """Rows that read all their blocks in spite of the window."""
    together: int = 1
    """Decodes per sequence group, the samples of one request."""
    chunk_blocks: int = 0
    """Number of last blocks that a chunk of a prompt reads, 0 for all."""
    numpy: int = 0
    """1 if block ids are numpy integers, 0 if they are Python's."""


class Sequence(NamedTuple):
    """One sequence of an engine step."""

    row: int
    is_prompt: bool
    query_len: int
    context_len: int
    blocks: list[int]


def sequences(batch: Batch, step: Step) -> list[Sequence]:
    """Return the sequences of the requests with tokens, prompts first."""
    seqs = []
    for row, (query_len, computed) in enumerate(
        zip(batch.query_lens, batch.computed_lens, strict=True)
    ):
        blocks = list(batch.blocks[row])
        if step.profile:
            if query_len:
                seqs.append(Sequence(row, True, query_len, 0, []))
        elif step.pad_size != -1 and query_len + computed:
            seqs.append(Sequence(row, False, 1, query_len + computed - 1, blocks))
        elif query_len:
            chunk = query_len > 1 or not computed or row in step.last_chunks
            seqs.append(Sequence(row, chunk, query_len, computed, blocks))
    if not seqs:  # an engine never runs an empty step
        seqs.append(Sequence(0, step.pad_size == -1, 1, 0, [] if step.profile else [0]))
    return sorted(seqs, key=lambda sequence: not sequence.is_prompt)


def seq_groups(batch: Batch, step: Step) -> list[InterData]:
    """Return the sequence groups: one for each prompt and for each `together` decodes."""
    seqs = sequences(batch, step)
    prompts = [[sequence] for sequence in seqs if sequence.is_prompt]
    decodes = [sequence for sequence in seqs if not sequence.is_prompt]
    size = max(1, step.together)
    groups = prompts + [decodes[i : i + size] for i in range(0, len(decodes), size)]
    return [_group(members, batch.block_size, step) for members in groups]


def _group(members: list[Sequence], block_size: int, step: Step) -> InterData:
    is_prompt = members[0].is_prompt
    seq_lens = [member.context_len + member.query_len for member in members]
    windows = [
        (step.chunk_blocks if is_prompt else 0, length)
        if is_prompt or member.row in step.whole
        else _window(length, block_size, step.window)
        for member, length in zip(members, seq_lens, strict=True)
    ]
    rows = {member.row for member in members}
    return InterData(
        is_prompt=is_prompt,
        seq_ids=[_seq_id(member.row) for member in members],
        input_tokens=[[7] * member.query_len for member in members],
        orig_seq_lens=seq_lens,
        seq_lens=[length for _, length in windows],
        query_lens=[member.query_len for member in members],
        context_lens=[member.context_len for member in members],
        curr_sliding_window_blocks=[blocks for blocks, _ in windows],
        block_tables=_tables(members, step),
        prefix_cache_hit=is_prompt and not step.profile and bool(rows & set(step.hits)),
        multi_modal_placeholder_maps=_maps(members[0], step),
    )


def _seq_id(row: int) -> int:
    return 100 + row


def _tables(members: list[Sequence], step: Step) -> dict[int, list[int] | None] | None:
    if step.profile:
        return None if step.profile == 1 else {_seq_id(member.row): None for member in members}
    if step.numpy:
        return {_seq_id(member.row): _of_numpy(member.blocks) for member in members}
    return {_seq_id(member.row): member.blocks for member in members}


def _of_numpy(blocks: list[int]) -> Any:
    return [np.int32(block) for block in blocks]


def _window(seq_len: int, block_size: int, window: int) -> tuple[int, int]:
    """Return the number of blocks that a decode's window reaches and of the tokens in them."""
    if not window:
        return 0, seq_len
    blocks, rest = -(-window // block_size), seq_len % block_size
    return blocks + (rest > 0), min(seq_len, blocks * block_size + rest)


def _maps(member: Sequence, step: Step) -> dict[str, PlaceholderMap]:
    """Return the placeholders of a prompt with an image: the image, then audio if it fits."""
    if not member.is_prompt or member.row not in step.images:
        return {}
    half = (member.query_len + 1) // 2
    image = PlaceholderMap([range(half)], half, [range(half)], member.query_len)
    if half == member.query_len:
        return {"image": image}
    rest = member.query_len - half
    places = range(half, member.query_len)
    audio = PlaceholderMap([range(1, 1 + rest)], 1 + rest, [places], member.query_len)
    return {"image": image, "audio": audio}


def build_lengths(batch: Batch, step: Step) -> tuple[list[int], list[int]]:
    """Return the seq_lens and query_lens arguments of `build`.

    Padded rows have an entry of 1 in seq_lens and none in query_lens.
    """
    groups = seq_groups(batch, step)
    seq_lens = [length for group in groups for length in group.seq_lens]
    query_lens = [length for group in groups for length in group.query_lens]
    return seq_lens + [1] * max(0, step.pad_size), query_lens


def step_from_params(params: Mapping[str, Any]) -> Step:
    """Make the step that a case's parameters describe."""
    values: dict[str, Any] = {f.name: params[f.name] for f in fields(Step) if f.name in params}
    if values.get("profile"):
        values["pad_size"] = -1  # a profile run uses no graph
    rows = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return replace(Step(), **values | rows)
