"""Micro-batches, under the name that they have kept since."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class UBatchSlice:
    request_slice: slice
    token_slice: slice
