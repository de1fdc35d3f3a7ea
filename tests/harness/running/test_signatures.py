"""Tests of the comparison of a candidate's signatures with the calls of operations."""

from __future__ import annotations

from types import ModuleType

import pytest

from attnproof import optimized, reference
from attnproof.harness.interfaces import INTERFACES, offered_as
from attnproof.harness.model.candidate import STRICT, Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import examine
from attnproof.harness.running.worker.signatures import misfit_of
from attnproof.harness.running.worker.worker import warm_up

SWAPPED = """
def slice_query_start_locs(request_slice, query_start_loc):
    return query_start_loc[request_slice]
"""
DECORATED = """
import functools
def turned(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*reversed(args))
    return wrapper
@turned
def slice_query_start_locs(request_slice, query_start_loc): ...
"""


def misfit(source: str, operation: str, interface: str = "any"):
    module = ModuleType("mine")
    exec(source, vars(module))
    return misfit_of(module, ALL[operation], interface)


@pytest.mark.parametrize(
    ("operation", "parameters", "what"),
    [
        ("get_mla_dims", "()", "lacks model_config"),
        ("get_mla_dims", "(model_config, what)", "requires what"),
        ("get_mla_dims", "(*, model_config)", "takes by name only model_config"),
        ("split_decodes_and_prefills", "(common_attn_metadata, **kw)", "lacks decode_threshold"),
        (
            "slice_query_start_locs",
            "(request_slice, query_start_loc)",
            "has the arguments in another order",
        ),
        (
            "build_slot_mapping",
            "(query_start_loc, num_computed_tokens, block_table, block_size, start_idx, out)",
            "lacks num_padded_tokens",
        ),
        (
            "build_slot_mapping",
            "(query_start_loc, block_table, block_size, num_computed_tokens, **others)",
            "has the arguments in another order",
        ),
    ],
)
def test_a_signature_that_no_call_fits(operation, parameters, what):
    difference = misfit(f"def {operation}{parameters}: ...", operation)
    assert difference.what == what
    assert f"the call is {operation}(" in difference.detail
    assert "it fits" not in difference.detail


@pytest.mark.parametrize(
    ("operation", "source"),
    [
        ("get_mla_dims", "def get_mla_dims(config): ..."),
        ("get_mla_dims", "def get_mla_dims(config, /, more=1, **others): ..."),
        ("get_mla_dims", "def get_mla_dims(*anything): ..."),
        ("get_mla_dims", "from operator import neg as get_mla_dims"),
        ("get_mla_dims", "get_mla_dims = type('Odd', (), {'__call__': print})()"),
        ("get_mla_dims", "get_mla_dims = 7"),
        # Arguments of later engines: the cases of the others lack them.
        ("split_decodes_and_prefills", "def split_decodes_and_prefills(batch, threshold=1): ..."),
        ("slice_query_start_locs", DECORATED),
    ],
)
def test_a_signature_that_a_call_fits(operation, source):
    assert misfit(source, operation) is None


def test_the_interface_whose_calls_fit_is_named():
    source = "def compute_causal_conv1d_metadata(query_start_loc_p_cpu, *, device): ..."
    difference = misfit(source, "compute_causal_conv1d_metadata")
    assert difference.what == "requires device"
    assert difference.detail.endswith("; it fits --interface vllm-0.32")
    assert misfit(source, "compute_causal_conv1d_metadata", "vllm-0.32") is None


@pytest.mark.parametrize(
    ("member", "what"),
    [
        ("append_block_ids(self, req_index, new_block_ids)", "lacks overwrite"),
        ("append_block_ids(self, req_index, new_block_ids, overwrite, more)", "requires more"),
        ("__init__(self, block_sizes)", "lacks max_num_reqs and max_num_batched_tokens and "),
    ],
)
def test_methods_of_a_class(member, what):
    head = "from attnproof import reference\nclass BlockTables(reference.BlockTables):"
    assert misfit(f"{head}\n def {member}: ...", "BlockTables").what.startswith(what)


@pytest.mark.parametrize("interface", ["", *INTERFACES])
def test_our_own_functions_fit(interface):
    modules = (
        [reference, optimized] if interface != "vllm-0.32" else [offered_as(interface, reference)]
    )
    for module in modules:
        for name, operation in ALL.items():
            if not interface or INTERFACES[interface].has(name, operation.section):
                assert misfit_of(module, operation, interface) is None, name


def examined(tmp_path, source: str):
    warm_up()
    path = tmp_path / "mine.py"
    path.write_text(source, encoding="utf-8")
    candidate = Candidate("mine", str(path), judged=STRICT)
    operation = ALL["slice_query_start_locs"]
    settings = Settings(examples=4, examples_db="")
    return examine(operation, candidate, settings, [], [], tmp_path / "ledger")


def test_one_case_shows_the_only_finding(tmp_path):
    outcome = examined(tmp_path, SWAPPED)
    (finding,) = outcome.findings
    assert outcome.result.verdict == "FAIL"
    assert outcome.result.cases == 1
    assert finding.diagnosis == "its signature has the arguments in another order"
    assert finding.message.startswith("the call is slice_query_start_locs(query_start_loc, ")
    assert finding.unreal == ""


def test_a_function_that_takes_the_call_all_the_same_is_judged_on_all_cases(tmp_path):
    source = """
import inspect
from attnproof import reference
def slice_query_start_locs(*args): return reference.slice_query_start_locs(*args)
slice_query_start_locs.__signature__ = inspect.signature(lambda other: 0)
"""
    outcome = examined(tmp_path, source)
    assert outcome.result.verdict == "PASS", outcome.findings
    assert outcome.result.cases > 50
