"""Cases as an engine makes them, near one that it does not make."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.real_cases import real_cases


class Failure(msgspec.Struct):
    """The parts of a failure that are read."""

    kind: str = "wrong-result"
    other_kind: str | None = None


@pytest.mark.parametrize("name", ["get_dcp_local_seq_lens", "prepare_dcp_local_seq_lens"])
def test_a_neighbour_whose_parameters_are_wrong_is_left_out(name):
    operation = ALL[name]
    params = next(iter(operation.inputs.boundaries()))[1].params
    case = Case(name, None, params | {"size": 2, "rank": 0, "interleave": 2**31})
    assert operation.why_unreal(case)
    occurrence = SimpleNamespace(smallest=SimpleNamespace(case=case), failure=Failure())
    examination = SimpleNamespace(
        operation=operation,
        counts=SimpleNamespace(advised={"cause": occurrence}),
        candidate=SimpleNamespace(judged={"wrong-result"}),
    )
    made = [one.case.params for one in real_cases(examination)]
    assert params | {"size": 2, "rank": 0, "interleave": 1} in made
    assert all(one["interleave"] is not None for one in made)
