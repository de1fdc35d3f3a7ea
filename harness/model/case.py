"""A case: one concrete input of one operation, saved and named by its content."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Literal

import msgspec

Dtype = Literal["int32", "int64", "int64 offsets", "int64 lengths", "int64 computed"]
"""All offsets and lengths alike, or one of the three wider than the others."""
Origin = Literal["fuzz", "boundary", "trace", "corpus", "recorded"]


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A consistent batch, said in numbers: tensors are made from it (`cases.batches.tensors`).

    Requests are given in row order. `blocks[r]` holds exactly the live block ids of
    request r, `ceil((computed + query) / block_size)` of them; whatever a real engine
    would have left behind them is made by the harness as stale garbage.
    """

    block_size: int
    """Tokens per KV-cache block."""
    query_lens: tuple[int, ...]
    """Query tokens of each request in this step."""
    computed_lens: tuple[int, ...]
    """Tokens of each request already in the cache."""
    blocks: tuple[tuple[int, ...], ...]
    """Live block ids of each request."""
    padded_requests: int = 0
    """Trailing rows with no query and no sequence (graph padding)."""
    padded_tokens: int = 0
    """Trailing tokens with slot -1 (graph padding)."""
    spare_columns: int = 0
    """Block-table columns beyond the widest request's blocks, all stale."""
    spare_slots: int = 0
    """Entries of slot_mapping beyond num_actual_tokens, all stale."""
    dtype: Dtype = "int32"
    """Of offsets and lengths."""
    strided: bool = False
    """Whether the tensors are non-contiguous views."""
    query_slack: int = 0
    """How far max_query_len lies above the longest query."""
    seq_slack: int = 0
    """How far max_seq_len lies above the longest sequence."""
    causal: bool = True
    logits_indices: tuple[int, ...] | None = None
    """Token indices whose logits are sampled, ascending."""
    logits_padding: int = 0
    """Stale entries behind logits_indices."""
    num_logits: int | None = None
    """Number of sampled tokens of a batch that carries no logits indices."""
    encoder_seq_lens: tuple[int, ...] | None = None
    """Encoder tokens of each request and padded row."""
    dcp_local_seq_lens: tuple[int, ...] | None = None
    """This rank's share of each sequence, padded rows too."""
    subclassed: bool = False
    """Whether the metadata is of a subclass with fields of its own (`cases.batches.subclass`)."""

    @property
    def num_requests(self) -> int:
        """Rows, padded ones not counted."""
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
        """Query tokens, padded ones not counted."""
        return sum(self.query_lens)


class Case(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    dict=True,
):
    """One input of one operation: a batch, the other arguments, and what was spoilt."""

    operation: str
    """Name of the operation in SPEC.md."""
    batch: Batch | None = None
    params: dict[str, Any] = {}
    """The other arguments by name: JSON values."""
    fault: str = ""
    """Name of the operation's fault that makes the input malformed, "" for good input."""

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits, the hash of the content."""
        return hashlib.blake2b(encode(self), digest_size=6).hexdigest()

    @property
    def num_requests(self) -> int:
        """Requests of the batch, or of arguments that describe some."""
        if self.batch is not None:
            return self.batch.num_requests
        return 1 if self._range is not None else len(self.params.get("query_lens", ()))

    @property
    def num_tokens(self) -> int:
        """Query tokens of the batch, or of arguments that describe some."""
        if self.batch is not None:
            return self.batch.num_tokens
        if self._range is not None:
            return max(0, self._range[1] - self._range[0])
        return sum(self.params.get("query_lens", ()))

    @property
    def num_steps(self) -> int:
        """Steps of a sequence, 0 for anything else."""
        return len(self.params.get("steps", ()))

    @property
    def _range(self) -> tuple[int, int] | None:
        """First and last position of an operation on one sequence."""
        for first, last in (("context_len", "seq_len"), ("range_start", "range_end")):
            if last in self.params:
                return self.params.get(first, 0), self.params[last]
        return None


class Sourced(msgspec.Struct, frozen=True):
    """A case and where it came from."""

    case: Case
    origin: Origin
    source: str = ""
    """Boundary name, trace file and step, or corpus path."""


_encoder = msgspec.json.Encoder(order="deterministic")


def encode(case: Case) -> bytes:
    """The case as canonical JSON: equal cases give equal bytes."""
    return _encoder.encode(case)


def decode(data: bytes | str) -> Case:
    """The case that `encode` wrote (msgspec.ValidationError for anything else)."""
    return msgspec.json.decode(data, type=Case)
