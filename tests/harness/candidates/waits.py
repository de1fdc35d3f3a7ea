"""Waits for the device to read a length, which SPEC.md does not allow here."""

from __future__ import annotations

from attnproof import reference


def slice_query_start_locs(query_start_loc, request_slice):
    rebased = reference.slice_query_start_locs(query_start_loc, request_slice)
    return rebased.clone() if rebased[-1].item() >= 0 else rebased  # a wait, on a GPU
