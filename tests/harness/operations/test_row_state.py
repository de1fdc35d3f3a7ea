"""Per-row arrays of any type that do not move with their row are found."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnproof import optimized, reference
from attnproof.harness.operations.persistent_batch.row_state import left_behind

ARRAYS = {
    "tensor": torch.zeros,
    "bool tensor": lambda rows: torch.zeros(rows, dtype=torch.bool),
    "2-D tensor": lambda rows: torch.zeros(rows, 9, dtype=torch.int64),
    "array": lambda rows: np.zeros(rows, dtype=np.int8),
    "list": lambda rows: [None] * rows,
    "list of lists": lambda rows: [[] for _ in range(rows)],
    "one attribute deeper": lambda rows: SimpleNamespace(top_p=torch.zeros(rows)),
}


def forgetful(array, *, on_swap=True, on_condense=True, parent=reference.PersistentBatch):
    """Return a batch class with one more per-row array, which the chosen methods do not move."""

    class Batch(parent):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.extra = array(self.max_num_reqs)

        def _values(self):
            return getattr(self.extra, "top_p", self.extra)

        def _move_values(self, before):
            """Move each request's value from its row in `before` to its row now."""
            old = self._values()[:] if isinstance(self._values(), list) else self._copy()
            for row, req_id in enumerate(self.req_ids):
                if req_id is not None:
                    self._values()[row] = old[before.index(req_id)]

        def _copy(self):
            values = self._values()
            return values.clone() if isinstance(values, torch.Tensor) else values.copy()

        def swap_states(self, i, j):
            before = list(self.req_ids)
            super().swap_states(i, j)
            if not on_swap:
                self._move_values(before)

        def condense(self):
            before = list(self.req_ids)
            super().condense()
            if not on_condense:
                self._move_values(before)

    return Batch


@pytest.mark.parametrize("package", [reference, optimized])
def test_reference_and_optimized_move_every_array(package):
    assert left_behind(package.PersistentBatch) == []


@pytest.mark.parametrize("parent", [reference.PersistentBatch, optimized.PersistentBatch])
@pytest.mark.parametrize("kind", ARRAYS)
def test_forgotten_array_is_found(kind, parent):
    name = "extra.top_p" if kind == "one attribute deeper" else "extra"
    found = left_behind(forgetful(ARRAYS[kind], parent=parent))
    assert found == [(name, "swap_states"), (name, "condense")]
    found = left_behind(forgetful(ARRAYS[kind], on_condense=False, parent=parent))
    assert found == [(name, "swap_states")]
    found = left_behind(forgetful(ARRAYS[kind], on_swap=False, parent=parent))
    assert found == [(name, "condense")]


@pytest.mark.parametrize("kind", ARRAYS)
def test_array_that_moves_is_not_reported(kind):
    assert left_behind(forgetful(ARRAYS[kind], on_swap=False, on_condense=False)) == []


def test_step_buffer_need_not_move():
    class Batch(forgetful(ARRAYS["tensor"])):
        def build(self, *args, **kwargs):
            self.extra.fill_(-1)
            return super().build(*args, **kwargs)

    assert left_behind(Batch) == []


def test_a_buffer_of_another_length_is_no_per_row_array():
    assert left_behind(forgetful(lambda rows: torch.zeros(rows + 1))) == []
