"""Interfaces: what an engine can say of a case, and its classes on both sides of a call."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.interfaces import DEFAULT, INTERFACES, interfaces_of
from attnproof.harness.interfaces.conversion import Conversion
from attnproof.harness.interfaces.vllm_batch import CommonAttentionMetadata as V32Batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.operations.batch.reorder import REORDER, Engine
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import examine
from attnproof.harness.running.worker.worker import warm_up

SPLIT = "split_decodes_and_prefills"
SLICE = "_make_metadata_with_slice"
LATER = make_batch(
    [1, 1, 3], [4, 5, 0], 4, later=True, prompt_lens=(4, 9, 3), logits_indices=(0, 4)
)


def fitted(name, case):
    return INTERFACES[name].fit(case)


def test_a_batch_without_later_fields_for_an_engine_that_has_none():
    case = Case(SPLIT, LATER, {"decode_threshold": 1, "treat_short_extends_as_decodes": False})
    for name in ("vllm-0.10", "vllm-0.11", "sglang-0.5"):
        made = fitted(name, case)
        assert (made.batch.later, made.batch.prompt_lens) == (False, None)
        assert made.params == {"decode_threshold": 1}
    assert fitted("vllm-0.32", case) is case


def test_progress_of_requests_as_far_as_an_engine_knows_it():
    plain = {"query_lens": [1, 5], "decode_threshold": 1}
    computed, prompts = plain | {"computed_lens": [2, 0]}, [2, 5]
    case = Case(REORDER, None, computed | {"prompt_lens": prompts})
    assert fitted("vllm-0.10", case).params == plain
    assert fitted("vllm-0.11", case).params == computed
    assert fitted("vllm-0.32", case).params == case.params
    without = Case(REORDER, None, computed)
    assert fitted("vllm-0.32", without).params == computed | {"prompt_lens": [0, 0]}
    none = Case(REORDER, None, computed | {"prompt_lens": None})
    assert fitted("vllm-0.32", none).params == computed | {"prompt_lens": [0, 0]}


@pytest.mark.parametrize(
    ("version", "known"),
    [("vllm-0.10", {1: 0, 2: 0}), ("vllm-0.11", {1: 1, 2: 1}), ("vllm-0.32", {1: 2, 2: 2})],
)
def test_the_builder_reorders_by_what_its_engine_knows(version, known):
    for progress, expected in known.items():
        params = {"via": 0, "prefix": 0, "fast": False, "progress": progress}
        case = Case("XFormersAttentionMetadataBuilder", make_batch([1, 3], [2, 0], 4), params)
        assert fitted(version, case).params["progress"] == expected


def test_without_an_engine_cases_keep_what_later_ones_have():
    batch = make_batch([6, 1], [3, 4], 4, later=True, prompt_lens=(9, 2))
    case = Case(SPLIT, batch, {"decode_threshold": 1, "treat_short_extends_as_decodes": False})
    assert fitted(DEFAULT, case) is case
    progress = {"query_lens": [1], "decode_threshold": 1, "computed_lens": [2]}
    case = Case(REORDER, None, progress | {"prompt_lens": [2]})
    assert fitted(DEFAULT, case) is case


def test_rows_always_have_progress_as_those_of_an_engine():
    def published(input_batch, scheduler_output, decode_threshold=1):
        return [*input_batch.num_computed_tokens_cpu, *input_batch.num_prompt_tokens]

    for name in ("any", "vllm-0.10", "vllm-0.11", "vllm-0.32"):
        rows = Engine([1, 5])
        assert INTERFACES[name].adapt(REORDER, published)(rows, rows) == [1, 1, 0, 0]
        rows = Engine([1, 5], [7, 0], [3, 5])
        assert INTERFACES[name].adapt(REORDER, published)(rows, rows)[:2] == [7, 0]


def test_a_function_is_not_called_with_arguments_that_it_lacks():
    def first(common_attn_metadata, decode_threshold=1):
        return "own"

    def second(common_attn_metadata, decode_threshold=1, require_uniform=False):
        return require_uniform

    metadata, _ = lay_out(LATER)
    adapt = INTERFACES[DEFAULT].adapt
    for named in ((1, False, True), (1, False), (1,)):
        assert adapt(SPLIT, first)(metadata, *named) == "own"
        assert adapt(SPLIT, second)(metadata, *named) is False
    assert adapt(SPLIT, first)(metadata, require_uniform=False) == "own"
    assert adapt(SPLIT, second)(metadata, 1, True, True) is True
    with pytest.raises(TypeError):
        adapt(SPLIT, first)(metadata, 1, True)
    with pytest.raises(TypeError):
        adapt(SPLIT, second)(metadata, 1, False, False)
    assert adapt(SPLIT, lambda *args, **kwargs: args)(metadata, 1, False, True) == (
        metadata,
        1,
        False,
        True,
    )


def test_an_argument_without_a_place_goes_by_name_with_the_batch_as_it_is():
    def named(batch, decode_threshold=1, require_uniform=False, **others):
        return batch, require_uniform, others

    def keyword(batch, decode_threshold=1, *, require_uniform=False, **others):
        return batch, require_uniform, others

    metadata, _ = lay_out(LATER)
    for function in (named, keyword):
        adapted = INTERFACES[DEFAULT].adapt(SPLIT, function)
        option = {"treat_short_extends_as_decodes": False}
        batch, *rest = adapted(metadata, 1, True, False)
        assert batch is metadata
        assert rest == [True, option]
        assert adapted(metadata, 1)[1:] == (False, {})


def test_a_split_of_an_engine_without_uniform_batches_is_not_asked_for_them():
    case = Case(SPLIT, make_batch([1], [3], 4), {"decode_threshold": 1, "require_uniform": True})
    assert fitted("vllm-0.10", case).params == {"decode_threshold": 1, "require_uniform": False}


def test_a_case_that_fits_is_the_same():
    case = Case(SPLIT, make_batch([1], [3], 4), {"decode_threshold": 1, "require_uniform": False})
    assert all(interface.fit(case) is case for interface in INTERFACES.values())


@pytest.fixture
def conversion():
    return Conversion(lambda: V32Batch)


def test_a_batch_becomes_the_engines_and_comes_back(conversion):
    metadata, _ = lay_out(LATER)
    theirs = conversion.theirs(metadata)
    assert type(theirs) is V32Batch
    assert not hasattr(theirs, "seq_lens_cpu")
    assert theirs.positions is metadata.positions
    assert theirs.is_prefilling.tolist() == [False, True, True]
    assert theirs.max_logits_per_req == 1
    assert conversion.ours(theirs, metadata) is metadata


def test_a_result_of_the_engine_becomes_ours(conversion):
    metadata, _ = lay_out(LATER)
    made = replace(conversion.theirs(metadata), positions=None)
    back = conversion.ours(made, metadata)
    assert type(back) is type(metadata)
    assert back.positions is None
    assert back.seq_lens_cpu.tolist() == metadata.seq_lens_cpu.tolist()
    assert back.num_computed_tokens_cpu.tolist() == [4, 5, 0]


def test_methods_of_the_batch_of_0_32(conversion):
    padded = msgspec.structs.replace(LATER, padded_requests=1, padded_tokens=3)
    theirs = conversion.theirs(lay_out(padded)[0])
    assert (theirs.batch_size(), theirs.naive_query_lens().tolist()) == (4, [1, 1, 3, 0])
    owners = theirs.token_to_req_indices(torch.full((9,), -7, dtype=torch.int32))
    assert owners.tolist() == [0, 1, 2, 2, 2, 3, 3, 3]
    fewer = theirs.unpadded(5, 3)
    assert (fewer.num_reqs, len(fewer.positions), len(fewer.is_prefilling)) == (3, 5, 3)
    assert np.array_equal(fewer.req_idx, theirs.req_idx[:3])
    longer = theirs.replace(seq_lens=theirs.seq_lens + 1)
    assert (longer.compute_num_computed_tokens() - theirs.compute_num_computed_tokens()).eq(1).all()


SOURCE = """
from dataclasses import replace

def split_decodes_and_prefills(
    common_attn_metadata, decode_threshold=1, require_uniform=False,
    treat_short_extends_as_decodes=True,
):
    md = common_attn_metadata
    assert not hasattr(md, "seq_lens_cpu")
    lens = md.query_start_loc_cpu.diff().tolist()
    flags = [False] * len(lens)
    if not treat_short_extends_as_decodes:
        flags = md.is_prefilling.tolist()
    n = 0
    while n < len(lens) and lens[n] <= decode_threshold and not flags[n]:
        if require_uniform and lens[n] != lens[0]:
            break
        n += 1
    if require_uniform and n and not any(lens[n:]) and not any(flags[n:]):
        n = len(lens)
    tokens = md.num_actual_tokens if n == len(lens) else int(md.query_start_loc_cpu[n])
    return n, len(lens) - n, tokens if lens else 0, md.num_actual_tokens - tokens if lens else 0
"""


def test_a_plugins_function_is_judged_in_the_engines_own_classes(tmp_path):
    warm_up()
    settings = Settings(examples=60, examples_db="", vary=False, sparse=True)
    path = tmp_path / "plugin.py"
    path.write_text(SOURCE, encoding="utf-8")
    candidate = Candidate(
        "plugin", str(path), interface="vllm-0.32", judged=frozenset(("wrong-result",))
    )
    outcome = examine(ALL[SPLIT], candidate, settings, [], [], tmp_path / "ledger")
    assert outcome.findings == []
    assert outcome.result.cases > 60
    path.write_text(SOURCE.replace("and not flags[n]", ""), encoding="utf-8")
    outcome = examine(ALL[SPLIT], candidate, settings, [], [], tmp_path / "ledger2")
    assert {finding.kind for finding in outcome.findings} == {"wrong-result"}


def test_the_interface_of_candidates():
    mine, ours = Candidate("mine", "/mine.py"), Candidate("optimized", "attnproof.optimized")
    chosen = with_interface([mine, ours], "vllm-0.32")
    assert [one.interface for one in chosen] == ["vllm-0.32", ""]
    assert with_interface([mine], "") == [mine]  # its classes choose, when it is imported
    with pytest.raises(UsageError, match=r"'vllm-9': did you mean vllm-0.32\? expected"):
        with_interface([mine], "vllm-9")


def test_each_operation_is_in_an_interface():
    ours = {name for name, one in ALL.items() if not interfaces_of(name, one.section)}
    assert ours == set()
    assert interfaces_of(SPLIT, "2") == ["vllm-0.10", "vllm-0.11", "vllm-0.32"]
    assert interfaces_of("is_block_tables_empty", "5") == ["vllm-0.10", "vllm-0.11"]
