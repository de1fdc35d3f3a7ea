"""Mistakes in first-generation (V0) metadata and graph state (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attnproof.harness.strength.mutation import mutation


@mutation(
    "CommonAttentionState",
    "K28",
    source="erratum E12",
    diagnoses=("state stays in capturing mode",),
    both=("invariants",),
)
def capturing_for_ever(state: Any) -> Any:
    """An exception inside a capture leaves the state in capturing mode."""

    class CommonAttentionState(state):
        @contextmanager
        def graph_capture(self, max_batch_size: int) -> Iterator[None]:
            self._is_graph_capturing = False
            capturing = dict(vars(self))
            try:
                with super().graph_capture(max_batch_size):
                    capturing = dict(vars(self))
                    yield
            except Exception:
                self.__dict__.update(capturing)
                raise

    return CommonAttentionState


_asked: list[Any] = []
"""Metadata of the last call and the answer; held, so that no other object gets its identity."""


@mutation(
    "is_all_encoder_attn_metadata_set",
    diagnoses=("depends on the call before",),
    one=("determinism",),
    both=(),
    examples=90,
)
def answer_kept_for_an_object(is_set: Any, attn_metadata: Any) -> Any:
    """The answer is kept for further calls with the same object, whose fields may change."""
    answer = is_set(attn_metadata)
    if not _asked or _asked[0] is not attn_metadata:
        _asked[:] = attn_metadata, answer
    return _asked[1]
