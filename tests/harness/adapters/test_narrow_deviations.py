"""Known deviations of vLLM are narrow: they do not explain another mistake in the same case."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from attnproof.harness.backports import tomllib
from attnproof.harness.cases.batches.subclass import Subclassed
from attnproof.harness.model.case import Case
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.task.deviations import known, load
from attnproof.reference.shared import CommonAttentionMetadata

FILE = Path(__file__).parents[3] / "harness" / "adapters" / "vllm_deviations.toml"
GET, SET = {"do": "get"}, {"do": "set", "layout": "HND"}
BUILD = {"do": "build", "rows": [[1, 1]], "pad": -1}
BEGIN = {"do": "begin", "rows": 1}
LONG = {"seq_len": 256, "context_len": 0, "start_idx": 0}
ALIKE, DIFFERENT = {"layers": [[1, 0], [1, 0]]}, {"layers": [[1, 0], [2, 0]]}


@pytest.fixture(scope="module")
def explaining():
    """Return the id of the entry that explains a failure in vLLM 0.10.2, None without one."""
    deviations = load(str(FILE), "0.10.2")

    def explain(operation, params, oracle, field, diagnosis="off by one"):
        failure = Failure(oracle=oracle, field=field, diagnosis=diagnosis, message="")
        found = known(deviations, Case(operation, None, params), failure)
        return found and found.id

    return explain


@pytest.mark.parametrize(("file", "entry"), [("vllm", "E34"), ("vllm_triton", "E80")])
def test_every_field_that_a_subclass_adds_is_known_to_be_dropped(file, entry):
    entries = tomllib.loads(FILE.with_name(f"{file}_deviations.toml").read_text())["deviation"]
    [dropped] = [one["fields"] for one in entries if one["id"] == entry]
    added = {f.name for f in fields(Subclassed)} - {f.name for f in fields(CommonAttentionMetadata)}
    assert added <= {name.removeprefix("*") for name in dropped}


@pytest.mark.parametrize(
    ("operation", "params", "oracle", "field"),
    [
        ("layout_sequence", {"steps": [SET, GET, GET]}, "sequences", "[].layout"),
        ("builder_sequence", {"steps": [{"do": "prepare"}, BUILD]}, "sequences", "[].raises"),
        ("compute_slot_mapping", LONG, "equality", "slot_mapping"),
        ("compute_slot_mapping", LONG, "invariants", "slot_mapping"),
        ("XFormersAttentionMetadata", {}, "equality", "decode_metadata.slot_mapping"),
        ("subclass_attention_metadata", {"form": 0}, "errors", "raises TypeError"),
        ("infer_global_hyperparameters", ALIKE, "errors", "raises AssertionError"),
        ("graph_sequence", {"steps": [BEGIN]}, "sequences", "[].raises"),
    ],
)
def test_another_mistake_is_not_a_known_deviation(explaining, operation, params, oracle, field):
    assert explaining(operation, params, oracle, field) is None


@pytest.mark.parametrize(
    ("operation", "params", "oracle", "field", "name"),
    [
        (
            "layout_sequence",
            {"steps": [GET, SET, GET]},
            "sequences",
            "[].layout",
            "E9 in a sequence",
        ),
        (
            "subclass_attention_metadata",
            {"form": 1},
            "errors",
            "raises TypeError",
            "E44 of a frozen class",
        ),
        (
            "infer_global_hyperparameters",
            DIFFERENT,
            "errors",
            "raises AssertionError",
            "E48 of layers that differ",
        ),
        (
            "builder_sequence",
            {"steps": [{"do": "prepare"}, BUILD | {"wrong": True}]},
            "sequences",
            "[].raises",
            "unchecked steps of a builder",
        ),
    ],
)
def test_the_known_mistake_is_explained(explaining, operation, params, oracle, field, name):
    assert explaining(operation, params, oracle, field) == name


def test_numpy_integers_among_the_slots_are_explained(explaining):
    said = "holds something other than Python ints"
    assert explaining("compute_slot_mapping", LONG, "invariants", "slot_mapping", said) == "E47"
