"""The heading of a wrong backend: a known mistake if one explains it alone, else what is seen.

Each function is judged on the boundaries of its operation and on some drawn cases, in this process.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from attnproof import reference
from attnproof.harness.model.case import Sourced
from attnproof.harness.model.verdict import OVERFLOW, Failure
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import equality, sequences
from attnproof.harness.oracles.diagnosis import heading
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.task.fuzz import strategy, without_local_constants
from attnproof.harness.running.task.occurrences import Tally
from attnproof.harness.strength.catalogue import find

SEEN = "what is seen"
MUTATIONS = {
    "padded uniform": "zero-length (padded) rows miscounted",
    "unpadded tokens": "padded tokens miscounted",
    "earlier rows": "zero-length (padded) rows miscounted",
    "first token of a prompt is a decode": "a row in its prompt taken for a decode",
    "not uniform": SEEN,
    "lists on one branch": "list where a tensor was expected",
    "padding mapped like a block": "padding becomes a block",
    "state of the next block": "stale entry read",
    "state by a rounded reciprocal": "off by one token",
    "interleave forgotten within a block": SEEN,
    "int32 product on a rank": "32-bit overflow",
    "tail of the buffer kept": "stale entry read",
    "turns within kernel blocks": SEEN,
    "context counted with its chunk": "the positions before a range counted with it",
    "second turn of a rank behind the last": SEEN,
    "one turn with its end": SEEN,
    "last slot past the end": "a slot for a token that must have none",
    "block size of another group": "slots of another block size",
    "lengths with rejected tokens": "sequences keep their rejected tokens",
    "offsets with rejected tokens": "offsets of the whole batch",
    "tokens from the drafters offsets": "slots of other tokens than the kept ones",
    "no backup token": "no backup token for a request without a valid one",
    "first column only": "valid tokens not counted",
    "int32 product of new slots": "32-bit overflow",
    "next column at a far blocks end": "token without its slot",
    "keys reduced with the queries": SEEN,
    "copy of a batch that is not reduced made causal": "a copy of the batch",
    "logits of an earlier step": "field that should not be set",
    "metadata with own logits returned as it is": "int where a tensor was expected",
    "offsets in two buffers in turn": "off by one token",
    "attributes shared with the underlying metadata": "underlying logits is wrong",
    "parameters of an undecorated class": "compared unlike the class that is extended",
    "prefix not added twice": "name is wrong",
    "wrapper of the innermost backend": "a backend that was made before is left out",
    "empty row": "zero-length row taken for a real one",
    "pages as slots": "pages taken for token slots",
    "tokens as pages": SEEN,
    "lists": "list where a tensor was expected",
    "a page too far": SEEN,
    "a chunk short of a key": "off by one token",
    "attributes of instances only": SEEN,
    "layers of one number": SEEN,
    "scales in single precision": "the opposite answer",
    "query rank of the configs instance": "lost field",
    "full last page of length 0": "a full last page of length 0",
    "page too many at a page edge": "a page too many",
    "pages of all ranks": SEEN,
    "next page at a page edge": "stale entry read",
    "last token written over": "a token written over the one before it",
    "last page not continued": "the prefix's last page not continued",
    "start offset lost": "the start offset lost",
    "rows between fitting ends": "stale entry read",
    "request 255 taken for padding": SEEN,
    "group slots in 32 bits": "32-bit overflow",
    "sampled token in the prompt": "is not the token to verify",
    "rejected tokens of another row": "the value of another row",
    "places in five bits": "is not the logit's place in its row",
    "chunks of equal ends": "is not the prompt's token",
    "slots padded from the padded tokens": "a slot for an entry that must have none",
    "replicated group is sharded": "a replicated group taken for a sharded one",
    "padded rows of an earlier step": "stale entry read",
    "dummy tables of an earlier step": "a dummy step names blocks",
    "int32 product": "32-bit overflow",
    "stale tail": SEEN,
    "slots at block edges": SEEN,
    "slots of a batch at block edges": SEEN,
    "column by a reciprocal of 20 bits": SEEN,
    "argmax of no long query": SEEN,
    "request that begins at the end": "holds a request without a token in it",
    "computed tokens forgotten": SEEN,
    "computed tokens": "computed tokens of a continued request not advanced",
    "dropped fields": "CommonAttentionMetadata where the given SubclassedMetadata was expected",
    "absolute offsets": "not rebased",
    "rows from the first": SEEN,
    "absolute lengths": SEEN,
    "prefix blocks only": "block table shorter than its sequence",
    "first blocks of a window": SEEN,
    "capturing for ever": "state stays in capturing mode",
    "tables without columns are none": "lost field",
    "no encoder tokens taken for unknown": SEEN,
    "longest encoder in place of the bound": SEEN,
    "rows for tokens": "cut with the wrong length",
    "a view that is not rebased": "another row's entry",
    "split kept for a step of the same size": "off by one token",
    "mask offsets kept for as many decodes": "the mask has lengths of another batch",
    "reordered by query lengths alone": "the opposite answer",
}
"""Headings of the functions of the catalogue, by name; others are wrong in no output."""
_DRAWN, _MOST_TOKENS, _MOST_ATTENDED = 20, 3000, 200
"""Drawn cases; most tokens of a case, and of one with attention."""
_ATTENTION = ("paged_attention", "decode_attention", "XFormersAttentionImpl")


@cache
def cases_of(name):
    """Return small cases of the operation that an engine makes, always the same ones."""
    operation = ALL[name]
    cases = [case for _, case in operation.inputs.boundaries()]
    if operation.inputs.machine is None:

        @seed(1)
        @settings(
            max_examples=_DRAWN,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
        )
        @given(strategy(operation, {}))
        def collect(case):
            cases.append(case)

        with without_local_constants():  # another constant anywhere would draw other cases
            collect()
    attends = operation.name in _ATTENTION
    most = _MOST_ATTENDED if attends else _MOST_TOKENS
    return [
        case
        for case in cases
        if not operation.why_unreal(case)
        and case.num_tokens <= most
        and not (attends and sum(case.batch.computed_lens) > most)
    ]


def heading_of(name, candidate):
    """Return the heading of the place that is wrong in most cases, first of those that fail."""
    operation = ALL[name]
    right, own = offered_by(reference, operation), offered_by(candidate, operation)
    tallies, smallest = {}, {}
    for case in cases_of(name):
        trial = Trial(operation, case, own, right, "cpu")
        if trial.first.error is not None or trial.first.malformed:
            continue
        failures = [*equality.judge(trial), *sequences.judge(trial)]
        for root in dict.fromkeys(failure.root for failure in failures):
            alike = [failure for failure in failures if failure.root == root]
            tallies.setdefault(root, Tally()).add(Sourced(case, "fuzz"), alike)
            size = (case.num_requests, case.num_tokens)
            smallest[root] = min((size, alike[0]), smallest.get(root, (size, alike[0])), key=_size)
    root = max(tallies, key=lambda root: tallies[root].cases)
    tally, failure = tallies[root], smallest[root][1]
    found = heading(failure, tally.explained, tally.diagnosed)
    return (
        SEEN
        if failure.fits is not None and re.search(r" is .*, expected | is wrong", found)
        else found
    )


def _size(one):
    return one[0]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_has_the_right_heading(name):
    (mutation,) = find(name)
    assert heading_of(mutation.operation, mutation.candidate) == MUTATIONS[name]


def ignores_uniformity(metadata, decode_threshold=1, require_uniform=False):
    """Leave early without a look at `require_uniform`."""
    if metadata.max_query_len <= decode_threshold:
        return metadata.num_reqs, 0, metadata.num_actual_tokens, 0
    return reference.split_decodes_and_prefills(metadata, decode_threshold, require_uniform)


def lengths_modulo(ubatch_slice, metadata):
    """Take lengths modulo 8, which gives 0 for a batch of one request too."""
    part = reference._make_metadata_with_slice(ubatch_slice, metadata)
    return replace(part, seq_lens=part.seq_lens % 8)


def lengths_reversed(ubatch_slice, metadata):
    """Give each row the length of the row at the other end."""
    part = reference._make_metadata_with_slice(ubatch_slice, metadata)
    return replace(part, seq_lens=part.seq_lens.flip(0))


def length_of_the_first(ubatch_slice, metadata):
    """Give the last row the length of the first one."""
    part = reference._make_metadata_with_slice(ubatch_slice, metadata)
    lengths = part.seq_lens.clone()
    lengths[-1:] = lengths[:1]
    return replace(part, seq_lens=lengths)


def lengths_and_one(ubatch_slice, metadata):
    """Count a token too many in each row."""
    part = reference._make_metadata_with_slice(ubatch_slice, metadata)
    return replace(part, seq_lens=part.seq_lens + 1)


def slots_of_another_step(starts, computed, table, block_size, **kwargs):
    """Lay tokens out by the offsets of a step of requests of one length each."""
    rows, tokens = len(starts) - 1, int(starts[-1])
    even = torch.arange(rows + 1, dtype=starts.dtype) * (tokens // max(rows, 1))
    even[-1] = tokens
    return reference.build_slot_mapping(even, computed, table, block_size, **kwargs)


def slots_and_one(*args, **kwargs):
    """Give each token the next slot."""
    slots = reference.build_slot_mapping(*args, **kwargs)
    return slots.where(slots < 0, slots + 1)


def slots_of_the_next_block(starts, computed, table, block_size, **kwargs):
    """Give each token a slot of the next block."""
    slots = reference.build_slot_mapping(starts, computed, table, block_size, **kwargs)
    return slots.where(slots < 0, slots + block_size)


def slots_of_the_row_before(starts, computed, table, block_size, **kwargs):
    """Read the row of the request before, whose sequence may be shorter."""
    return reference.build_slot_mapping(starts, computed, table.roll(1, 0), block_size, **kwargs)


def slots_of_another_block(starts, computed, table, block_size, **kwargs):
    """Read the first block of the second row in the first one."""
    table = table.clone()
    if (starts.diff() + computed > 0)[:2].sum() == 2 and table.shape[1]:
        table[0, 0] = table[1, 0]
    return reference.build_slot_mapping(starts, computed, table, block_size, **kwargs)


def wide_window(*args, sliding_window=None, **kwargs):
    """See a key before the window."""
    window = sliding_window and sliding_window + 1
    reference.paged_attention(*args, sliding_window=window, **kwargs)


def no_window(*args, sliding_window=None, **kwargs):
    """Ignore the window."""
    reference.paged_attention(*args, **kwargs)


def no_soft_cap(*args, logits_soft_cap=None, **kwargs):
    """Ignore the soft cap."""
    reference.paged_attention(*args, **kwargs)


def neither(*args, logits_soft_cap=None, sliding_window=None, **kwargs):
    """Ignore window and soft cap."""
    reference.paged_attention(*args, **kwargs)


def prefix_without_scales(query, keys, values, starts, lengths, *args, **kwargs):
    """Forget the scales of an fp8 cache where a request has a cached prefix."""
    out, plain = kwargs.pop("out"), kwargs | {"k_scale": None, "v_scale": None}
    if kwargs.get("k_scale") is not None:
        plain |= {name: torch.ones_like(kwargs[name]) for name in ("k_scale", "v_scale")}
    reference.paged_attention(query, keys, values, starts, lengths, *args, **kwargs, out=out)
    other = torch.empty_like(out)
    reference.paged_attention(query, keys, values, starts, lengths, *args, **plain, out=other)
    cached = (lengths > starts.diff()).repeat_interleave(starts.diff().long())
    out[: len(cached)] = torch.where(cached[:, None, None], other, out)[: len(cached)]


@pytest.mark.parametrize(
    ("operation", "function", "expected"),
    [
        ("split_decodes_and_prefills", ignores_uniformity, SEEN),
        ("_make_metadata_with_slice", lengths_modulo, SEEN),
        ("_make_metadata_with_slice", lengths_reversed, "wrong order"),
        ("_make_metadata_with_slice", length_of_the_first, "another request's row"),
        ("_make_metadata_with_slice", lengths_and_one, "off by one token"),
        ("build_slot_mapping", slots_of_another_step, SEEN),
        ("build_slot_mapping", slots_and_one, "off by one token"),
        ("build_slot_mapping", slots_of_the_next_block, "off by one block"),
        ("build_slot_mapping", slots_of_the_row_before, SEEN),
        ("build_slot_mapping", slots_of_another_block, "another request's block"),
        ("paged_attention", wide_window, "window one key too wide"),
        ("paged_attention", no_window, "sliding window ignored"),
        ("paged_attention", no_soft_cap, "soft cap ignored"),
        ("paged_attention", neither, "sliding window and soft cap ignored"),
        ("paged_attention", prefix_without_scales, "fp8 scales forgotten"),
    ],
)
def test_a_wrong_function_has_the_right_heading(operation, function, expected):
    candidate = SimpleNamespace(**{operation: function})
    assert heading_of(operation, candidate) == expected


def failure(
    *fits, message="result[3] is 7, expected 4", about="a row with 2 of 16 tokens computed"
):
    return Failure(
        oracle="equality", field="result", diagnosis="x", message=message, fits=fits, about=about
    )


@pytest.mark.parametrize(
    ("explained", "cases", "words"),
    [
        ({"off by one token": 9}, 10, "off by one token"),
        ({"off by one token": 8}, 10, "result[3] is 7, expected 4: a row with 2 of 16 tokens com"),
        ({"off by one token": 10, "not rebased": 9}, 10, "result[3] is 7, expected 4: a row"),
        ({"off by one token": 10, "not rebased": 8}, 10, "off by one token"),
        ({"not rebased": 10}, 10, "result[3] is 7"),  # which the case that is shown does not fit
        ({"off by one token": 10, "zero-length row taken for a real one": 9}, 10, "result[3]"),
    ],
)
def test_a_mistake_is_named_if_it_alone_explains_nine_in_ten_cases(explained, cases, words):
    shown = failure("off by one token")
    assert heading(shown, Counter(explained), cases).startswith(words)


def test_a_single_case_names_all_mistakes_that_fit():
    assert heading(failure("not rebased", "off by one token")) == "not rebased or off by one token"
    assert heading(failure("wrong order", "another request's row")) == "wrong order"
    both = ("an earlier batch left behind", "a refused batch left behind")
    assert heading(failure(*both)) == "a refused batch left behind"
    assert heading(failure(*both), Counter({both[0]: 9, both[1]: 6}), 9) == both[0]
    assert heading(failure()).startswith("result[3] is 7, expected 4: a row")
    assert heading(failure(message="x" * 200, about="")) == "result is wrong"


def test_a_guess_that_integers_wrapped_is_no_root_cause_of_its_own():
    """Blocks far behind the start of a cache are wrong by any mistake, not by this one only."""
    fact = Failure(oracle="equality", field="result", diagnosis=OVERFLOW, message="")
    other = msgspec.structs.replace(fact, diagnosis="block not copied", fits=("block not copied",))
    assert fact.root != other.root
    assert msgspec.structs.replace(fact, fits=(OVERFLOW,)).root == other.root
