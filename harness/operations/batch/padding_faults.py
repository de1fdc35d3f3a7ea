"""Faults of graph padding: malformed metadata, and sizes that cut the batch."""

from __future__ import annotations

from typing import Any

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import metadata_faults, wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import batch_of


def _has_rows(case: Case) -> bool:
    batch = batch_of(case)
    return batch.num_requests > 0 and batch.query_lens[-1] + batch.computed_lens[-1] > 0


def _has_history(case: Case) -> bool:
    """True if the last request has computed tokens but no query."""
    batch = batch_of(case)
    return batch.num_requests > 0 and not batch.query_lens[-1] and batch.computed_lens[-1] > 0


def _adds_no_token(case: Case) -> bool:
    """True if padding adds no token."""
    # With added tokens torch itself refuses the float, at an allocation.
    return bool(case.params["more_tokens"] == 0)


def _last_request(_: int, metadata: Any) -> int:
    """Return the index of the last row that has a sequence."""
    return int(metadata.seq_lens_cpu.nonzero()[-1])


def _has_tokens(case: Case) -> bool:
    return batch_of(case).num_tokens > 0


FAULTS = {
    **metadata_faults("metadata", sequences=True, logits=True),
    "fewer tokens than there are": Fault(
        "num_tokens", lambda _, there: there - 1, applies=_has_tokens, reads=("num_actual_tokens",)
    ),
    "fewer rows than there are": Fault(
        "num_reqs", lambda _, there: there - 1, applies=_has_rows, reads=("num_actual_reqs",)
    ),
    "cuts a live token": Fault(
        "num_actual_tokens",
        lambda _, metadata: int(metadata.query_start_loc_cpu[-1]) - 1,
        applies=_has_tokens,
        reads=("metadata",),
    ),
    "cuts a live row": Fault(
        "num_actual_reqs", _last_request, applies=_has_rows, reads=("metadata",)
    ),
    "cuts an idle row with a history": Fault(
        "num_actual_reqs", _last_request, applies=_has_history, reads=("metadata",)
    ),
    "keeps more tokens than there are": Fault(
        "num_actual_tokens", lambda _, there: there + 1, reads=("num_tokens",)
    ),
    "keeps more rows than there are": Fault(
        "num_actual_reqs", lambda _, there: there + 1, reads=("num_reqs",)
    ),
    "keeps a negative number of rows": wrong_value("num_actual_reqs", -1),
    "tokens as a float": Fault("num_tokens", float, error=TypeError, applies=_adds_no_token),
    "rows of another type": wrong_type("num_reqs"),
    "tokens to keep of another type": wrong_type("num_actual_tokens"),
    "rows to keep of another type": wrong_type("num_actual_reqs"),
}
