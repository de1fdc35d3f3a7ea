"""Runs of a live engine's scheduler: what it was given and what it decided, step by step."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from attnproof.harness.cases.scheduler.config import SchedulerConfig

VERSION = 1
"""Version of the format."""


class Arrival(msgspec.Struct, array_like=True, frozen=True):
    """A request that joins the queue; requests are numbered in order of arrival, from 0."""

    input_tokens: int
    """Prompt tokens."""
    output_tokens: int
    """Tokens that it generates."""
    prefixes: tuple[int, ...]
    """One id per full block of the prompt, which identifies its tokens and all before them."""


class EngineStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An engine step: inputs of the scheduler, its decisions, and what the model sampled."""

    arrived: tuple[Arrival, ...] = ()
    """Requests that arrived since the step before, in order."""
    aborted: tuple[int, ...] = ()
    """Requests that were aborted since the step before, in order."""
    drafts: dict[int, int] = {}
    """Draft tokens of running requests that wait for verification, where there are any."""
    scheduled: tuple[tuple[int, int], ...]
    """Scheduled requests and their query tokens, in the scheduler's order."""
    blocks: tuple[tuple[int, ...], ...]
    """Blocks of each scheduled request, after the schedule."""
    free: int
    """Free blocks after the schedule."""
    sampled: dict[int, int] = {}
    """Sampled tokens of each request that has any: one, and the accepted drafts."""


class EngineRun(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file: the engine and its configuration."""

    schema: str = "attnproof-engine-run"
    version: int = VERSION
    engine: str
    """Engine and release."""
    command: str
    """The command that made the file."""
    config: SchedulerConfig


def write_run(path: Path, run: EngineRun, steps: Iterable[EngineStep]) -> None:
    """Write a run as lines of JSON, compressed by gzip."""
    encode = msgspec.json.encode
    lines = b"".join(encode(line) + b"\n" for line in (run, *steps))
    path.write_bytes(gzip.compress(lines, mtime=0))


def read_run(path: Path) -> tuple[EngineRun, Iterator[EngineStep]]:
    """Read a run that `write_run` wrote (OSError, msgspec.DecodeError)."""
    first, *others = gzip.decompress(path.read_bytes()).splitlines()
    run = msgspec.json.decode(first, type=EngineRun)
    if run.version > VERSION:
        raise msgspec.ValidationError(
            f"version {run.version} of the format, known up to {VERSION}: update attnproof"
        )
    return run, (msgspec.json.decode(line, type=EngineStep) for line in others)
