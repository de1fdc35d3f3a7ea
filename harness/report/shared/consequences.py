"""The consequence of a finding for an engine, in one sentence."""

from __future__ import annotations

from typing import NamedTuple

from attnproof.harness.model.run import Finding
from attnproof.harness.model.verdict import CONSUMER, ERRORS, PROCESS, Kind


class _Rule(NamedTuple):
    """A sentence for the findings whose diagnosis has one of these texts in it."""

    texts: tuple[str, ...]
    sentence: str
    fields: tuple[str, ...] = ()
    """Fields that the rule is for, () for any."""
    oracle: str = ""
    """Oracle that the rule is for, "" for any."""


_SLOTS = ("slot_mapping",)
_TABLES = ("block_table_tensor", "block_table", "block_tables")
_OVERWRITTEN = "Keys and values are written into another request's cache, without an error."
_LEAKED = "Attention reads another request's cache, so its tokens influence this answer."

_BY_DIAGNOSIS = (
    _Rule(("hang", "no reply", " within "), "The engine stands still on such a step.", (), PROCESS),
    _Rule(
        ("standard output",),
        "The text is mixed into the output of the engine's process.",
        oracle=PROCESS,
    ),
    _Rule(("processes behind",), "Each engine that ends leaves a process.", (), PROCESS),
    _Rule(
        ("",), "The engine's process ends on such a step, with all of its requests.", (), PROCESS
    ),
    _Rule(
        ("accepts malformed", "no error"),
        "Metadata that contradicts itself gets to a kernel, in place of an error that names it.",
    ),
    _Rule(
        ("a copy of an input",),
        "A captured graph or a later layer reads the copy, which no update of the input reaches.",
    ),
    _Rule(("stray write",), "Memory beside the buffer changes: another tensor is wrong later."),
    _Rule(
        ("its signature ",),
        "The other cases were not run. A table can map names and arguments (candidates.md).",
    ),
    _Rule(("raises ",), "An engine step with such a batch ends with this exception."),
    _Rule(("32-bit overflow",), "In a large cache the address wraps, and points at other memory."),
    _Rule(
        ("stale", "earlier request", "never written", "left unwritten"),
        "The result depends on what earlier batches left in memory, so it is wrong only sometimes.",
    ),
    _Rule(("another request's", "request that", "two requests"), _OVERWRITTEN, _SLOTS),
    _Rule(("overwrites another request's", "that no request"), _OVERWRITTEN, oracle=CONSUMER),
    _Rule(("another request's", "both rows"), _LEAKED),
    _Rule(("lost field",), "Code that reads this field later fails, or falls back to a default."),
    _Rule(
        ("dtype",),
        "A kernel that was compiled for the specified dtype reads other numbers from this memory.",
    ),
    _Rule(
        ("where a",), "Code that relies on the type fails: a kernel, a strict check or a JSON line."
    ),
    _Rule(("compiles a kernel",), "A server stands still for a second or two; results are right."),
    _Rule(
        ("in another thread",),
        "Engines call from several threads: one micro-batch computes with the numbers of another.",
    ),
    _Rule(
        ("order of a dict", "object that holds"),
        "An engine adds rows to a dict as requests come and go, and slices its buffers anew: "
        "the result changes with that.",
    ),
    _Rule(("another device",), "A kernel that gets this tensor fails, or copies it on each step."),
    _Rule(("mirror",), "Host and device decide by different numbers on the same step."),
    _Rule(("sees keys of its own future",), "A token attends to tokens that come after it."),
    _Rule(("uncomputed", "unwritten"), "A token is never computed, and its answer is garbage."),
)
_BY_FIELD = {
    "slot_mapping": "Keys and values are written to other cache slots than attention reads.",
    "block_table_tensor": "Attention reads blocks of the cache that hold other tokens.",
    "block_table": "Attention reads blocks of the cache that hold other tokens.",
    "block_tables": "Attention reads blocks of the cache that hold other tokens.",
    "seq_lens": "Attention sees another number of cached keys than the request has.",
    "seq_lens_cpu": "The host plans with another sequence length than the request has.",
    "query_start_loc": "Query tokens are attributed to other requests.",
    "query_start_loc_cpu": "The host attributes query tokens to other requests.",
    "num_computed_tokens_cpu": "Query tokens of the request are put at other positions.",
    "max_query_len": "A kernel that sizes its grid by it leaves tokens out, or does too much.",
    "max_seq_len": "A kernel that sizes its loop by it leaves keys out, or does too much.",
    "num_decodes": "Requests are given to the kernel that is not for them.",
    "num_prefills": "Requests are given to the kernel that is not for them.",
    "num_decode_tokens": "Tokens are given to the kernel that is not for them.",
    "num_prefill_tokens": "Tokens are given to the kernel that is not for them.",
    "num_actual_tokens": "Kernels compute another number of tokens than the batch has.",
    "num_reqs": "Kernels compute another number of requests than the batch has.",
    "logits_indices_padded": "Logits are taken of other tokens than those that are sampled.",
    "num_logits_indices": "Logits are taken of other tokens than those that are sampled.",
    "encoder_seq_lens": "Cross attention sees another number of encoder tokens.",
    "dcp_local_seq_lens": "A rank attends to another number of positions than it owns.",
}
_BY_ORACLE = {
    ERRORS: "Malformed metadata is not refused as callers expect.",
    "determinism": "The same batch gives different metadata, so a failure may not come again.",
    "sequences": "The mistake shows after several steps of an engine, not in a single call.",
    CONSUMER: "Attention over these outputs reads or writes other cache slots than it should.",
    "purity": "The engine uses its input again, and later layers compute with the changed values.",
    "padding": "The result depends on stale memory, so it is wrong only after certain batches.",
    "red zones": "Memory beside the buffer changes: another tensor is wrong later.",
    "cost": "Each engine step takes longer than it has to: results are right.",
}


def consequence(finding: Finding) -> str:
    """Return the `sentences` in one line, "" without any."""
    return " ".join(filter(None, sentences(finding)))


def sentences(finding: Finding) -> tuple[str, ...]:
    """Return a sentence on the consequence, on a kernel, the interface and an engine; "" each."""
    return _effect(finding), finding.kernel, finding.interface, finding.engine


def _effect(finding: Finding) -> str:
    """Return the consequence of the mistake for an engine, a sentence; "" without one."""
    if finding.unreal:
        return f"None that is known: {finding.unreal}."
    if finding.oracle == "purity" and finding.kind is Kind.CONTRACT:
        return "None that is known: no engine writes this memory as long as the result is used."
    field = _field(finding)
    for rule in _BY_DIAGNOSIS if finding.has_known_mistake else ():
        if (
            rule.oracle in ("", finding.oracle)
            and (not rule.fields or field in rule.fields)
            and any(text in finding.diagnosis for text in rule.texts)
        ):
            return rule.sentence
    if finding.oracle in ("equality", "invariants") and field in _BY_FIELD:
        return _BY_FIELD[field]
    return _BY_ORACLE.get(finding.oracle, "")


def _field(finding: Finding) -> str:
    """Return the name of the wrong field, without its place in a list and its index."""
    name = finding.field.rsplit(".", 1)[-1].partition("[")[0]
    if name in ("result", "out") and "slot_mapping" in finding.operation:
        return "slot_mapping"
    return name
