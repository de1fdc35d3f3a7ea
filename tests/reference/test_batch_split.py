"""Tests of the split and of reordering in cases that published versions get wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.mark.spec("E30: 0.10.2 asserts that nothing behind the boundary is a decode")
def test_a_decode_after_a_prefill_counts_as_a_prefill(package, make_metadata):
    metadata = make_metadata([1, 9, 1], [4, 9, 6])
    assert package.split_decodes_and_prefills(metadata) == (1, 2, 1, 10)


@pytest.mark.spec("E31: it has no `require_uniform`")
@pytest.mark.parametrize(("uniform", "counts"), [(False, (3, 0, 5, 0)), (True, (2, 1, 4, 1))])
def test_a_graph_may_ask_for_decodes_of_one_length(package, make_metadata, uniform, counts):
    metadata = make_metadata([2, 2, 1], [7, 5, 3])
    made = package.split_decodes_and_prefills(metadata, 2, require_uniform=uniform)
    assert made == counts


@pytest.mark.spec(
    "E32: 0.32 counts rows with q = 0 as decodes wherever they stand in a uniform batch"
)
def test_an_idle_row_inside_the_batch_ends_the_uniform_run(package, make_metadata):
    metadata = make_metadata([2, 0, 2], [5, 4, 7])
    assert package.split_decodes_and_prefills(metadata, 2, True) == (1, 2, 2, 2)


class Rows:
    """Rows of an engine with the computed tokens of each request; swaps move both."""

    def __init__(self, scheduled: dict[str, int], computed: list[int]) -> None:
        self.schedule = SimpleNamespace(num_scheduled_tokens=scheduled)
        self.req_ids = list(scheduled)
        self.num_computed_tokens_cpu = computed
        self.swaps = 0

    def swap_states(self, i: int, j: int) -> None:
        for rows in (self.req_ids, self.num_computed_tokens_cpu):
            rows[i], rows[j] = rows[j], rows[i]
        self.swaps += 1


@pytest.mark.spec("E33: from 0.11 on published code pairs the k-th prefill from the front")
def test_the_first_prefill_changes_places_with_the_last_decode(package):
    rows = Rows({"long": 9, "longer": 70, "one": 1, "other": 1}, [3, 3, 3, 3])
    assert package.reorder_batch_to_split_decodes_and_prefills(rows, rows.schedule) is True
    assert rows.req_ids == ["other", "one", "longer", "long"]
    assert rows.swaps == 2


@pytest.mark.spec("puts prompts behind continued ones")
def test_a_prompt_stays_before_a_continued_request(package):
    rows = Rows({"prompt": 9, "continued": 9}, [0, 20])
    assert package.reorder_batch_to_split_decodes_and_prefills(rows, rows.schedule) is False
    assert rows.req_ids == ["prompt", "continued"]
