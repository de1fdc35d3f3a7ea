"""Traces in JSON lines: Mooncake, Qwen-Bailian, and the requests of a measured vLLM run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from attnproof.harness.cases.traces.formats import Lines, Reader, Row, TraceFormat

Count = Annotated[int, msgspec.Meta(ge=0)]
Time = Annotated[float, msgspec.Meta(ge=0)]


class MooncakeRow(msgspec.Struct, frozen=True):
    """`timestamp` in ms, a hash id for each 512 prompt tokens."""

    timestamp: Time
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...]

    def row(self) -> Row:
        """Seconds, lengths and hashes."""
        return self.timestamp / 1000, self.input_length, self.output_length, self.hash_ids


class QwenBailianRow(msgspec.Struct, frozen=True):
    """`timestamp` in s, a hash id for each 16 prompt tokens; chat, type and turn are not used."""

    chat_id: int | str
    timestamp: Time
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...]

    def row(self) -> Row:
        """Seconds, lengths and hashes."""
        return self.timestamp, self.input_length, self.output_length, self.hash_ids


class VllmBenchRow(msgspec.Struct, frozen=True):
    """A request that a real vLLM served: `queued_ts` (s, monotonic) is when its scheduler saw it.

    `arrival_time` is when the client sent it: up to a second of tokenising lies between.
    """

    input_toks: Count
    output_toks: Count
    queued_ts: Time

    def row(self) -> Row:
        """Seconds and lengths."""
        return self.queued_ts, self.input_toks, self.output_toks, ()


AnyRow = TypeVar("AnyRow", MooncakeRow, QwenBailianRow, VllmBenchRow)


def _rows(lines: Lines, row_type: type[AnyRow]) -> Iterator[Row]:
    decode: Callable[[str], AnyRow] = msgspec.json.Decoder(row_type).decode
    for number, text in enumerate(lines.texts, start=1):
        if not text:
            continue
        try:
            yield decode(text).row()
        except msgspec.ValidationError as error:
            raise lines.error(number, str(error), "repair or delete the row") from error
        except msgspec.DecodeError as error:
            raise lines.cut(number) or lines.error(
                number, "is not JSON", "repair or delete the row"
            ) from error


def _reader(row_type: type[AnyRow], **options: object) -> Reader:
    names = frozenset(row_type.__struct_fields__)
    return Reader(names, partial(_rows, row_type=row_type), **options)  # type: ignore[arg-type]


READERS: dict[TraceFormat, Reader] = {
    # Before Mooncake, whose columns it has too.
    "qwen-bailian": _reader(QwenBailianRow, tokens_per_hash=16),
    "mooncake": _reader(MooncakeRow, tokens_per_hash=512, arrivals="ticks"),
    "vllm-bench": _reader(VllmBenchRow),
}
