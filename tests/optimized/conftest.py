"""Fixtures of the tests of `optimized`: build batches, call both packages, compare exactly.

The environment selects the lane: `TRITON_INTERPRET=1 pytest tests/optimized` runs the
kernels on CPU tensors, without it the host loops run. `test_lanes.py` runs the former.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnproof import optimized, reference
from attnproof.harness.running.worker.interpreter import skip_discarded_checks, skip_repeated_work
from attnproof.optimized import dispatch
from attnproof.optimized.checking import checked
from attnproof.reference import CommonAttentionMetadata

if dispatch.INTERPRETED:
    skip_discarded_checks()
    skip_repeated_work()

Build = Callable[..., CommonAttentionMetadata]

_spec = importlib.util.spec_from_file_location("layers", Path(__file__).parent / "layers.py")
assert _spec is not None
_layers = sys.modules["layers"] = importlib.util.module_from_spec(_spec)
assert _spec.loader is not None
_spec.loader.exec_module(_layers)


@pytest.fixture(scope="session")
def layers() -> Any:
    """Module `layers.py`, imported by path because test folders are not packages."""
    return _layers


@pytest.fixture(autouse=True)
def _checks() -> Iterator[None]:
    """Check input: the tests also cover the errors. `agree` compares results without checks."""
    with checked():
        yield


@pytest.fixture
def no_sync() -> Callable[..., Any]:
    """Function that calls another twice: once to compile, then with syncs as errors."""

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return function(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return call


@pytest.fixture(scope="session")
def build() -> Build:
    """Function that builds a batch from query and sequence lengths, with shuffled blocks."""
    return _build


@pytest.fixture(scope="session")
def agree() -> Callable[..., Any]:
    """Function that calls an operation of both packages and requires identical outcomes.

    Results or errors must be equal, and the arguments must not change. A result must be the
    same without checks.
    """
    return _agree


def _build(
    query_lens: list[int],
    seq_lens: list[int],
    block_size: int = 2,
    *,
    dtype: torch.dtype = torch.int32,
    width: int | None = None,
    first_block: int = 0,
    strided: bool = False,
    device: str = "cpu",
    **fields_: Any,
) -> CommonAttentionMetadata:
    rows = len(query_lens)
    if width is None:
        width = max([1, *(-(-s // block_size) for s in seq_lens)])
    offsets = torch.tensor([0, *np.cumsum(query_lens)], dtype=dtype)
    lengths = torch.tensor(seq_lens, dtype=dtype)
    computed = lengths - torch.tensor(query_lens, dtype=dtype)
    generator = torch.Generator().manual_seed(rows * 1009 + width)
    ids = first_block + torch.randperm(rows * width, generator=generator)
    table = ids.reshape(rows, width).to(torch.int32)
    slots = reference.build_slot_mapping(offsets, computed.clamp(min=0), table, block_size)
    place = (lambda t: _strided(t).to(device)) if strided else (lambda t: t.to(device))
    common: dict[str, Any] = {
        "query_start_loc": place(offsets.clone()),
        "query_start_loc_cpu": _strided(offsets) if strided else offsets,
        "seq_lens": place(lengths.clone()),
        "seq_lens_cpu": _strided(lengths) if strided else lengths,
        "num_computed_tokens_cpu": _strided(computed) if strided else computed,
        "num_reqs": rows,
        "num_actual_tokens": int(offsets[-1]),
        "max_query_len": max(query_lens, default=0),
        "max_seq_len": max(seq_lens, default=0),
        "block_table_tensor": place(table),
        "slot_mapping": place(slots),
    }
    return CommonAttentionMetadata(**common | fields_)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as every second element, in each dimension, of a larger buffer."""
    buffer = torch.full([2 * n + 1 for n in tensor.shape], 77, dtype=tensor.dtype)
    view = buffer[tuple(slice(1, 2 * n + 1, 2) for n in tensor.shape)]
    view.copy_(tensor)
    return view


def _agree(name: str, *args: Any, **kwargs: Any) -> Any:
    expected = _outcome(getattr(reference, name), *args, **kwargs)
    before, again = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
    if not isinstance(expected, Exception):
        with checked(False):
            trusted = _outcome(getattr(optimized, name), *again[0], **again[1])
        _same(trusted, expected, f"{name} without checks")
    got = _outcome(getattr(optimized, name), *args, **kwargs)
    _same(got, expected, name)
    _same((args, kwargs), before, f"{name}: inputs after the call")
    return got


def _outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except (ValueError, TypeError) as error:
        return error


def _same(got: Any, expected: Any, where: str) -> None:
    """Require equal types and values, of tensors also equal dtype, device and shape."""
    assert type(got) is type(expected), f"{where}: expected {expected!r}, got {got!r}"
    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype, f"{where}: {got.dtype}, not {expected.dtype}"
        assert got.device == expected.device, f"{where}: on {got.device}"
        assert torch.equal(got, expected), f"{where}: expected {expected}, got {got}"
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, where
        np.testing.assert_array_equal(got, expected, err_msg=where)
    elif is_dataclass(expected):
        for field in fields(expected):
            _same(getattr(got, field.name), getattr(expected, field.name), f"{where}.{field.name}")
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), where
        for index, pair in enumerate(zip(got, expected, strict=True)):
            _same(*pair, f"{where}[{index}]")
    elif isinstance(expected, dict):
        assert list(got) == list(expected), where
        for key, value in expected.items():
            _same(got[key], value, f"{where}[{key!r}]")
    elif isinstance(expected, BaseException):
        assert str(got) == str(expected), f"{where}: expected {expected}, got {got}"
    else:
        assert got == expected, f"{where}: expected {expected!r}, got {got!r}"
