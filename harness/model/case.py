"""A case: one concrete input of one operation, identified by a hash of its content."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Dtype = Literal["int32", "int64", "int64 offsets", "int64 lengths", "int64 computed", "int64 table"]
"""Dtype of offsets and lengths; "int64 offsets" means int64 offsets, all else int32.

With "int64 table" the block table of metadata is int64."""
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""Number of tokens, tokens' index or block id: a non-negative int32."""
Rows = Annotated[tuple[Count, ...], Meta(max_length=2**16)]
"""Number of each request."""
Indices = Annotated[tuple[Count, ...], Meta(max_length=2**20)]
Padding = Annotated[int, Meta(ge=0, le=2**20)]
"""Number of entries behind the live ones."""
MOST_BEFORE = 2000
"""Calls that a case may need before it."""
Origin = Literal["fuzz", "boundary", "trace", "corpus", "recorded"]


REAL: tuple[Origin, ...] = ("trace", "recorded")
"""Origins of batches that engines ran; cases of the other origins are tests."""


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A consistent batch as numbers, from which `cases.batches.tensors` makes tensors.

    Requests are given in row order. `blocks[r]` holds exactly the live block ids of
    request r, `ceil((computed + query) / block_size)` of them. Entries beyond them are stale
    and get a poison pattern when the tensors are made.
    """

    block_size: Annotated[int, Meta(ge=1, le=2**16)]
    """Tokens per KV-cache block."""
    query_lens: Rows
    """Query tokens of each request in this engine step."""
    computed_lens: Rows
    """Tokens of each request already in the cache."""
    blocks: Annotated[tuple[Indices, ...], Meta(max_length=2**16)]
    """Live block ids of each request."""
    padded_requests: Annotated[int, Meta(ge=0, le=2**16)] = 0
    """Trailing rows with no query and no sequence (graph padding)."""
    padded_tokens: Padding = 0
    """Trailing tokens with slot -1 (graph padding)."""
    spare_columns: Padding = 0
    """Block-table columns beyond the widest request's blocks, all stale."""
    spare_slots: Padding = 0
    """Entries of slot_mapping beyond num_actual_tokens, all stale."""
    dtype: Dtype = "int32"
    """Dtype of offsets and lengths."""
    strided: bool = False
    """True if the tensors are non-contiguous views."""
    query_slack: Count = 0
    """Difference of max_query_len and the longest query, in tokens."""
    seq_slack: Count = 0
    """Difference of max_seq_len and the longest sequence, in tokens."""
    causal: bool = True
    logits_indices: Indices | None = None
    """Token indices whose logits are sampled, ascending."""
    logits_padding: Padding = 0
    """Stale entries after logits_indices."""
    num_logits: Count | None = None
    """Number of sampled tokens of a batch without logits indices."""
    encoder_seq_lens: Rows | None = None
    """Encoder tokens of each request, padded rows included."""
    dcp_local_seq_lens: Rows | None = None
    """This rank's share of each sequence in tokens, padded rows included."""
    subclassed: bool = False
    """True if the metadata's class is the subclass of `cases.batches.subclass`."""
    later: bool = False
    """True if the metadata has the fields of `cases.batches.later`."""
    prompt_lens: Rows | None = None
    """Prompt tokens of each request, for the fields of later engines."""
    bound_slack: Count = 0
    """Difference of a decode's later bound and its length, in tokens; a prefill's is exact."""
    no_slots: bool = False
    """True if its layers write no cache by slots, as those of encoders and of states: all slots
    are 0, and a row may have any number of blocks."""

    @property
    def num_requests(self) -> int:
        """Number of requests, without padded rows."""
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
        """Number of query tokens, without padding."""
        return sum(self.query_lens)

    @property
    def has_null_blocks(self) -> bool:
        """True if a row holds a block twice, as the null block before a window."""
        return any(len(set(blocks)) < len(blocks) for blocks in self.blocks)

    @property
    def unreal(self) -> str:
        """Why no engine makes the batch, "" if one may."""
        if not self.num_requests + self.padded_requests:
            return "an engine makes no step without a row"
        if not self.num_tokens + self.padded_tokens:
            return "an engine makes no step without a token"
        rows = list(zip(self.query_lens, self.computed_lens, strict=False))
        while rows and not any(rows[-1]):  # the same as a padded row
            rows.pop()
        if not all(query_len for query_len, _ in rows):
            return "an engine gives each request of a step a token"
        if self.logits_indices == ():
            return "an engine samples a token in each step"
        if self.logits_indices and max(self.logits_indices) >= self.num_tokens:
            return "an engine samples no padding"
        if list(self.logits_indices or ()) != sorted(set(self.logits_indices or ())):
            return "an engine samples each token once, in order"
        if self.strided:
            return "the tensors of an engine have no gaps between their elements"
        return "" if self.dtype == "int32" else "offsets, lengths and tables of an engine are int32"


class Case(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    dict=True,
):
    """One input of one operation: a batch, the other arguments and at most one fault."""

    operation: str
    """Name of the operation in SPEC.md."""
    batch: Batch | None = None
    params: dict[str, Any] = {}
    """Other arguments by name, as JSON values."""
    fault: str = ""
    """Name of the operation's fault that makes the input malformed, "" for valid input."""
    before: Annotated[tuple[Case, ...], Meta(max_length=MOST_BEFORE)] = ()
    """Cases of the operation that a fresh process is called on first, in order."""

    @cached_property
    def id(self) -> str:
        """Hash of the content, twelve hexadecimal digits."""
        return hashlib.blake2b(encode(self), digest_size=6).hexdigest()

    @property
    def num_requests(self) -> int:
        """Number of requests of the batch, or of the arguments that describe requests."""
        if self.batch is not None:
            return self.batch.num_requests
        return 1 if self._range is not None else len(self.params.get("query_lens", ()))

    @property
    def num_tokens(self) -> int:
        """Number of query tokens of the batch, or of the arguments that describe requests."""
        if self.batch is not None:
            return self.batch.num_tokens
        if self._range is not None:
            return max(0, self._range[1] - self._range[0])
        return sum(self.params.get("query_lens", ()))

    @property
    def num_steps(self) -> int:
        """Number of steps of a sequence, 0 for any other operation."""
        return len(self.params.get("steps", ()))

    @property
    def _range(self) -> tuple[int, int] | None:
        """Positions [first, last) of an operation on one sequence, None for any other."""
        for first, last in (("context_len", "seq_len"), ("range_start", "range_end")):
            if last in self.params:
                return self.params.get(first, 0), self.params[last]
        return None


class Sourced(msgspec.Struct, frozen=True):
    """A case and its origin."""

    case: Case
    origin: Origin
    source: str = ""
    """Boundary name, trace file and step, or corpus path."""


class EngineStep(msgspec.Struct, frozen=True):
    """A batch that an engine ran, or may have run, or its calls as a case of one operation."""

    batch: Batch | None
    source: str
    """Trace and step: `trace.csv#step=123`; recording, line and group: `run.jsonl#12,group=0`."""
    origin: Origin = "trace"
    case: Case | None = None
    """Case of calls, None of a batch."""


_encoder = msgspec.json.Encoder(order="deterministic")


def encode(case: Case) -> bytes:
    """Encode a case as canonical JSON: equal cases give equal bytes."""
    return _encoder.encode(case)


def decode(data: bytes | str) -> Case:
    """Decode the JSON that `encode` writes; raise msgspec.ValidationError for other JSON."""
    return msgspec.json.decode(data, type=Case)
