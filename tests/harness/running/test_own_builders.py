"""Metadata builders of a candidate: right ones pass, and each mistake is a finding."""

from __future__ import annotations

import json
import re

import pytest

from attnproof.harness.running.own_builders import builders_of

BUILDERS = '''
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnproof.reference import AttentionMetadataBuilder as Base
from attnproof.reference import split_decodes_and_prefills
from attnproof.reference.interface import AttentionCGSupport


@dataclass
class Metadata:
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    split: tuple
    causal: bool

    @property
    def num_decodes(self):
        return self.split[0]

    @property
    def num_decode_tokens(self):
        return self.split[2]


class Right(Base[Metadata]):
    """Keeps lengths in memory of its own, as graphs need them."""
    cudagraph_support = AttentionCGSupport.ALWAYS
    threshold = None

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(2)
        rows = vllm_config.scheduler_config.max_num_seqs
        self.lengths = torch.zeros(rows, dtype=torch.int32, device=device)

    def lengths_of(self, md):
        self.lengths[: md.num_reqs].copy_(md.seq_lens)
        return self.lengths[: md.num_reqs]

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        md = common_attn_metadata
        split = split_decodes_and_prefills(md, self.threshold or self.reorder_batch_threshold)
        return Metadata(
            md.num_actual_tokens, md.max_query_len, md.max_seq_len, md.query_start_loc,
            self.lengths_of(md), md.block_table_tensor, md.slot_mapping, split, md.causal,
        )


class CutTable(Right):
    """Right as well: without the columns that no row uses."""
    def build(self, *args, **kwargs):
        md = super().build(*args, **kwargs)
        columns = -(-md.max_seq_len // self.kv_cache_spec.block_size)
        return replace(md, block_table=md.block_table[:, : max(1, columns)])


class TensorMaximum(Right):
    """Right as well: a maximum that is still a tensor."""
    def build(self, *args, **kwargs):
        md = super().build(*args, **kwargs)
        return replace(md, max_seq_len=torch.tensor(md.max_seq_len))


class NotPersistent(Right):
    def lengths_of(self, md):
        return md.seq_lens.to(torch.int32, copy=True)


class Replaced(Right):
    """Has other memory after a batch that does not fit."""
    def __init__(self, *args):
        super().__init__(*args)
        self.lengths = torch.zeros(64, dtype=torch.int32)

    def lengths_of(self, md):
        if len(self.lengths) < md.num_reqs:
            self.lengths = torch.zeros(2 * md.num_reqs, dtype=torch.int32)
        return super().lengths_of(md)


class Resized(Right):
    """Moves its memory for a batch that does not fit."""
    def __init__(self, *args):
        super().__init__(*args)
        self.lengths = torch.tensor([], dtype=torch.int32).resize_(64)

    def lengths_of(self, md):
        if len(self.lengths) < md.num_reqs:
            self.lengths.resize_(2 * md.num_reqs)
        return super().lengths_of(md)


class KeptByCounts(Right):
    kept: Any = None

    def lengths_of(self, md):
        key = md.num_reqs, md.num_actual_tokens
        if self.kept is None or self.kept[0] != key:
            self.kept = key, md.seq_lens.to(torch.int32, copy=True)
        return super().lengths_of(replace(md, seq_lens=self.kept[1]))


class WithoutItself(Right):
    def lengths_of(self, md):
        return super().lengths_of(replace(md, seq_lens=md.seq_lens - md.query_start_loc.diff()))


class WrittenInput(Right):
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common_attn_metadata.slot_mapping[common_attn_metadata.slot_mapping < 0] = 0
        return super().build(common_prefix_len, common_attn_metadata, fast_build)


class OtherThreshold(Right):
    threshold = 1


class ShortMaximum(Right):
    def build(self, *args, **kwargs):
        md = super().build(*args, **kwargs)
        lengths = md.seq_lens.tolist()
        return replace(md, max_seq_len=max(lengths[:-1] or lengths, default=0))


class NarrowTable(Right):
    def build(self, *args, **kwargs):
        md = super().build(*args, **kwargs)
        columns = md.max_seq_len // self.kv_cache_spec.block_size
        return replace(md, block_table=md.block_table[:, : max(1, columns)])


class AlwaysCausal(Right):
    def build(self, *args, **kwargs):
        return replace(super().build(*args, **kwargs), causal=True)


class Odd:
    """Builder with names of its own, which only a table names."""
    def __init__(self, spec, *, where):
        self.where = where

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        md = common_attn_metadata
        lengths = md.seq_lens + SHIFT
        return {"offsets": md.query_start_loc, "pages": [md.block_table_tensor, lengths]}

SHIFT = 0
'''
RIGHT = ("Right", "CutTable", "TensorMaximum")
MISTAKES = {
    "NotPersistent": "the tensor is not persistent",
    "Replaced": "a larger batch moved the tensor",
    "Resized": "a larger batch moved the tensor",
    "KeptByCounts": "seq_lens",
    "WithoutItself": "seq_lens",
    "WrittenInput": "slot_mapping",
    "OtherThreshold": "num_decodes",
    "ShortMaximum": "max_seq_len",
    "NarrowTable": "block_table",
    "AlwaysCausal": "causal",
}
TABLE = """
module = "plugin/metadata.py"

[builders.Odd]
new = "Odd(kv_cache_spec, where=device)"
query_start_loc = "it['offsets']"
block_table = "it['pages'][0]"
seq_lens = "it['pages'][1]"
"""
FEW = ("--no-vary", "--depth=quick", "--seed=1", "--out=out")


@pytest.fixture
def plugin(tmp_path):
    """Return the folder of a package whose module imports its builders from another one."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "backend.py").write_text(BUILDERS)
    names = ", ".join([*RIGHT, "Odd", *MISTAKES])
    (folder / "metadata.py").write_text(f"from .backend import {names}\n")
    (tmp_path / "table.toml").write_text(TABLE)
    return tmp_path


def verdicts(folder) -> dict[str, str]:
    """Return the verdict of each operation that is offered."""
    summary = json.loads((folder / "out/summary.json").read_text())
    verdicts = {entry["name"]: entry["verdict"] for entry in summary["operations"]}
    return {name: verdict for name, verdict in verdicts.items() if verdict != "NOT OFFERED"}


def test_builders_are_found_in_the_source(plugin):
    names = builders_of(str(plugin / "plugin/metadata.py"))
    assert names == sorted([*RIGHT, *MISTAKES])
    assert builders_of(str(plugin / "table.toml")) == ["Odd", *names]


def test_right_builders_pass_and_each_mistake_is_named(attnproof, plugin):
    done = attnproof("verify", "--candidate", "plugin/metadata.py", *FEW, cwd=plugin)
    assert done.returncode == 1, done.stderr
    expected = dict.fromkeys(MISTAKES, "FAIL") | dict.fromkeys(RIGHT, "PASS")
    assert verdicts(plugin) == expected
    summary = json.loads((plugin / "out/summary.json").read_text())
    for name, words in MISTAKES.items():
        texts = [
            f"{finding['diagnosis']} {finding['message']}"
            for finding in summary["findings"]
            if finding["operation"] == name
        ]
        assert any(words in text for text in texts), (name, texts)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_table_names_the_fields_of_a_builder(attnproof, plugin, shift):
    source = plugin / "plugin/backend.py"
    source.write_text(source.read_text().replace("SHIFT = 0", f"SHIFT = {shift}"))
    done = attnproof("verify", "--candidate", "table.toml", "--ops=Odd", *FEW, cwd=plugin)
    assert (done.returncode, verdicts(plugin)) == (shift, {"Odd": "FAIL" if shift else "PASS"})
    if shift:
        (case,) = re.findall(r"replay (out/cases/\w+\.json)", done.stdout)
        assert "plugin/backend.py:" in (plugin / "out/index.html").read_text()
        replayed = attnproof("replay", case, "--candidate", "table.toml", cwd=plugin)
        assert (replayed.returncode, "FAIL Odd [table]" in replayed.stdout) == (1, True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seq_lens =", "seq_lenz =", "table.toml:8: Odd.seq_lenz: metadata has no usual field of "
         "this name: did you mean seq_lens?"),
        ("Odd(kv", "Odder(kv", "table.toml:5: Odd.new: Odder is neither an argument"),
        ("where=", "wheres=", "no argument wheres: did you mean where?"),
        ("it['offsets']", "itt['offsets']", "Odd.query_start_loc: itt is neither an argument (it)"),
        ('new = "Odd(kv_cache_spec, where=device)"', "", "Odd.new"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(attnproof, plugin, old, new, message):
    table = plugin / "table.toml"
    table.write_text(table.read_text().replace(old, new))
    done = attnproof("verify", "--candidate", "table.toml", *FEW, cwd=plugin)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (plugin / "out").exists()


def test_tensors_under_names_of_their_own_are_named(attnproof, plugin):
    source = plugin / "plugin/backend.py"
    source.write_text(source.read_text().replace("    seq_lens: torch", "    extents: torch"))
    done = attnproof("verify", "--candidate=plugin/metadata.py", "--ops=Right", *FEW, cwd=plugin)
    assert done.returncode == 0
    assert (
        "note: not compared: extents; of the usual fields it lacks seq_lens, which a table "
        "[builders.Right] can name" in done.stdout
    )


def test_what_no_stand_in_has_is_no_finding(attnproof, plugin):
    source = plugin / "plugin/backend.py"
    asked = "rows = vllm_config.scheduler_config.max_num_seqs"
    source.write_text(source.read_text().replace(asked, f"{asked} + vllm_config.warp_config.size"))
    done = attnproof("verify", "--candidate=plugin/metadata.py", "--ops=Right", *FEW, cwd=plugin)
    assert (done.returncode, verdicts(plugin)) == (3, {"Right": "UNVERIFIED"})
    assert "the stand-in for vllm_config has no warp_config: instantiate" in done.stdout
