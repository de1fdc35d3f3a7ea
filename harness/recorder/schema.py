"""The schema of a recording: frames of msgpack in one stream of zstd (docs/recordings.md).

A frame is the length of its payload and the payload's CRC-32, each a little-endian uint32, and
the payload: one of the structs below as a msgpack map. The first frame is a `Header`.
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta

SCHEMA = "attnproof.recording"
VERSION = 2
"""Version of the schema; a reader refuses later ones."""
SUFFIX = ".attnrec"
MAGIC = b"\x28\xb5\x2f\xfd"
"""First bytes of a zstd stream."""
PREFIX = struct.Struct("<II")
"""Length of a payload in bytes, and its CRC-32."""
MOST_PAYLOAD = 1 << 26
"""Maximum size of a payload in bytes."""
WINDOW_BYTES = 1 << 23
"""Maximum size of the window of the compression."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, Meta(max_length=200)]


class Group(msgspec.Struct, frozen=True):
    """A KV-cache group of the engine."""

    spec: Name
    """Class of the group's specification."""
    block_size: Count
    """Tokens per block."""


class ManagerGroup(msgspec.Struct, frozen=True):
    """A group of a KV-cache manager."""

    spec: Name
    """Class of the group's specification, and its mode if it has states."""
    block_size: Count
    window: Count
    """Tokens of a window or chunk, 0 without."""
    draft: bool
    """True if it is a drafter's."""


class Manager(msgspec.Struct, frozen=True):
    """Sizes of a KV-cache manager."""

    num_blocks: Count
    groups: list[ManagerGroup]
    max_model_len: Count
    caching: bool
    hash_lookahead: Count
    """Tokens behind a block that its hash covers."""
    watermark: Count
    """Blocks that a waiting request leaves free."""
    unspecified: list[Name] = []
    """Options in force of which SPEC.md section 16 says nothing."""


class Header(msgspec.Struct, frozen=True, tag="header"):
    """Facts that hold for all steps of a file. No names of hosts, files or requests."""

    schema: Name
    version: Count
    recorder: Name
    """Version of attnproof."""
    engine: Name
    engine_version: Name
    runner: Name
    """Class of the model runner."""
    model: Name
    """Class of the model."""
    max_model_len: Count
    """Maximum length of a sequence in tokens."""
    rank: Count
    world: dict[Name, Count]
    """Number of ranks of each kind of parallelism."""
    device: Name
    groups: list[Group]
    sample: Count
    """One in so many steps is recorded."""
    manager: Manager | None = None
    """Sizes of the manager whose calls the file has, None in a file of batches."""


class Tensor(msgspec.Struct, array_like=True, frozen=True):
    """A copy of a tensor."""

    dtype: Name
    shape: list[Count]
    """Shape of the copy."""
    strides: list[Integer]
    """Strides of the engine's tensor, in elements."""
    data: bytes
    """Elements in C order, little-endian."""


class BuildFrame(msgspec.Struct):
    """Metadata that the engine handed to one metadata builder."""

    door: Name
    """Method that got it: build, drafting or update_block_table."""
    group: Count
    """Index of the KV-cache group."""
    spec: Name
    block_size: Count
    """Tokens per block of the block table."""
    builder: Name
    ubatch: Count
    """Index of the micro-batch, or of the drafting step."""
    numbers: dict[Name, Integer | bool | None]
    """Fields that are numbers."""
    tensors: dict[Name, Count]
    """Fields that are tensors, as indices into the step's."""
    omitted: list[Name] = []
    """Fields that were set and not recorded."""
    table_columns: Count = 0
    """Columns of the engine's block table; the copy has those in use and a few more."""


class SplitFrame(msgspec.Struct):
    """A call of `split_decodes_and_prefills` by a builder."""

    build: Count
    """Index of the build whose metadata was split."""
    arguments: dict[Name, Integer | bool]
    result: list[Integer]


class Step(msgspec.Struct, tag="step"):
    """One engine step, or the metadata of drafting after it."""

    step: Count
    """Number of the engine step in its process, from 1; also counts steps that are left out."""
    tensors: list[Tensor]
    builds: list[BuildFrame]
    splits: list[SplitFrame] = []
    rows: list[Count] = []
    """Request of each row of the batch, as a number that only this file has."""
    computed: list[Count] = []
    """Computed tokens of each row."""
    scheduled: list[tuple[Count, Count]] = []
    """Requests and their scheduled tokens, in the scheduler's order."""
    drafts: list[tuple[Count, Count]] = []
    """Requests with draft tokens, and the number of these."""
    new: list[Count] = []
    resumed: list[Count] = []
    finished: list[Count] = []
    preempted: list[Count] = []


class ManagerTable(msgspec.Struct, array_like=True, frozen=True):
    """Change of the block table of a request in a group.

    The first `nulls` blocks are NULL; `tail` are the last ones, up to the new length.
    """

    nulls: Count
    length: Count
    tail: list[Count]


class ManagerCall(msgspec.Struct, omit_defaults=True):
    """A call of a manager's method, and its answer."""

    do: Name
    """Name of the method."""
    request: Count = 0
    """Request as a number from 1 that only this file has, 0 for none."""
    known: Count = 0
    """Tokens of the request."""
    prefixes: bytes = b""
    """A number of 8 bytes for each of the last of these tokens, those that no earlier call has:
    equal if and only if all tokens up to it are equal, and adapter, salt and images with them."""
    computed: Count = 0
    in_flight: Count = 0
    """Tokens of steps whose results are not known."""
    numbers: dict[Name, Integer | bool] = {}
    """Arguments that are numbers."""
    hits: Count = 0
    ids: list[list[Count]] | None = None
    """Blocks in the answer of each group, or those to evict."""
    tables: list[ManagerTable] = []
    """Changes of the request's blocks in each group."""
    reset: bool = False
    free: Count = 0
    """Number of free blocks after the call."""
    finished: bool = False
    """True if the request has ended, and does not wait to be resumed."""


class ManagerStep(msgspec.Struct, tag="manager"):
    """The calls of a manager from the start of one engine step to that of the next."""

    step: Count
    """Number of the step, from 0 for calls before the first one."""
    calls: list[ManagerCall]
    new: list[Count] = []
    """Requests that were not named before."""


class End(msgspec.Struct, tag="end"):
    """The last frame of a file that was closed."""

    steps: Count
    """Frames of steps in the file."""
    dropped: Count
    """Frames of steps that were not written because the queue was full."""
    reason: Name
    """Why the recorder stopped: exit, limit, or the class of an error."""


Frame = Header | Step | ManagerStep | End


def framed(payload: bytes) -> bytes:
    """Return a payload with its length and CRC-32."""
    return PREFIX.pack(len(payload), zlib.crc32(payload)) + payload
