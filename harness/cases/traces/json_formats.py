"""Readers of JSON-lines traces: Mooncake, Qwen-Bailian, requests of a measured vLLM run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from attnproof.harness.cases.traces.formats import Lines, Reader, Row, TraceFormat

Count = Annotated[int, msgspec.Meta(ge=0)]
Time = Annotated[float, msgspec.Meta(ge=0)]


class MooncakeRow(msgspec.Struct, frozen=True):
    """A row of Mooncake: `timestamp` in ms, one hash id per 512 prompt tokens."""

    timestamp: Time
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...]

    def row(self) -> Row:
        """Return arrival in seconds, lengths and hashes."""
        return self.timestamp / 1000, self.input_length, self.output_length, self.hash_ids


class QwenBailianRow(msgspec.Struct, frozen=True):
    """A row of Qwen-Bailian: `timestamp` in s, one hash id per 16 prompt tokens."""

    chat_id: int | str
    timestamp: Time
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...]

    def row(self) -> Row:
        """Return arrival in seconds, lengths and hashes."""
        return self.timestamp, self.input_length, self.output_length, self.hash_ids


class VllmBenchRow(msgspec.Struct, frozen=True):
    """A request of a measured vLLM run; `queued_ts` (s, monotonic) is its arrival.

    The request reaches the scheduler at `queued_ts`, up to a second of tokenising after
    `arrival_time`, at which the client sends it.
    """

    input_toks: Count
    output_toks: Count
    queued_ts: Time

    def row(self) -> Row:
        """Return arrival in seconds, lengths and no hashes."""
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
        except (msgspec.DecodeError, RecursionError) as error:
            raise lines.cut(number) or lines.error(
                number, "is not JSON", "repair or delete the row"
            ) from error


def _reader(row_type: type[AnyRow], **options: object) -> Reader:
    names = frozenset(row_type.__struct_fields__)
    return Reader(names, partial(_rows, row_type=row_type), **options)  # type: ignore[arg-type]


READERS: dict[TraceFormat, Reader] = {
    # Detected before Mooncake, whose columns it has too.
    "qwen-bailian": _reader(QwenBailianRow, tokens_per_hash=16),
    "mooncake": _reader(MooncakeRow, tokens_per_hash=512, arrivals="ticks"),
    "vllm-bench": _reader(VllmBenchRow),
}
