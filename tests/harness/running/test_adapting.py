"""Tables of calls: a candidate with names, arguments and classes of its own."""

from __future__ import annotations

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from attnproof.harness.running.adapting import adapted, read_adapter, unused_notes
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.interface_choice import interface_line, with_interface
from attnproof.harness.running.worker.places import place_of

PLUGIN = """
from attnproof.reference import BlockTables
SIZE = 0

def part_of(offsets, first, last):
    return offsets[first : last + 1] - offsets[first]

def splits(offsets, threshold):
    return sum(1 for tokens in offsets.diff().tolist() if tokens <= threshold)

class Tables:
    def __init__(self, rows, sizes, **others):
        self.ours = BlockTables(sizes, rows, **others)
        self.tables = self.ours.input_block_tables

    def add(self, ids, row, *, replace):
        self.ours.append_block_ids(row, ids, replace)

    def __getattr__(self, name):
        return getattr(self.ours, name)
"""
BATCHES = """
def split_batch(offsets, tokens, *, most, uniform, prefilling):
    lengths = offsets.diff().tolist()
    flags = [False] * len(lengths) if prefilling is None else prefilling.tolist()
    count = 0
    while count < len(lengths) and lengths[count] <= most and not flags[count]:
        if uniform and most > 1 and lengths[count] != lengths[0] and any(lengths[count:]):
            break
        count += 1
    decoded = tokens if count == len(lengths) else int(offsets[count])
    return count, len(lengths) - count, decoded, tokens - decoded, "more"
"""
PART = "def part_of(offsets, first, last):"
INIT = "    def __init__(self, rows, sizes, **others):"
FEW = ("--no-vary", "--seed=1", "--out=out")
HEAD = 'module = "src/acme/tables.py"\n'
ARGUMENTS = (
    "max_num_batched_tokens=max_num_batched_tokens, cp_rank=cp_rank, device=device, "
    "max_num_blocks_per_group=max_num_blocks_per_group, cp_size=cp_size, "
    "cp_interleave=cp_interleave, dcp_sharded=dcp_sharded, "
    "slot_mapping_enabled=slot_mapping_enabled"
)
TABLE = f"""{HEAD}
[functions]
slice_query_start_locs = '''
(lambda first: part_of(query_start_loc, first, last=request_slice.stop))(request_slice.start)
'''

[classes.BlockTables]
new = "Tables(max_num_reqs, block_sizes, {ARGUMENTS})"
append_block_ids = "it.add(new_block_ids, req_index, replace=overwrite)"
input_block_tables = "it.tables"
"""


@pytest.fixture
def verify(attnproof, tmp_path):
    """Verify the plugin by a table; return exit code, standard error and verdicts."""
    (tmp_path / "src/acme").mkdir(parents=True)
    (tmp_path / "src/acme/__init__.py").touch()
    (tmp_path / "src/acme/tables.py").write_text(PLUGIN)

    def run(
        table: str, ops: str = "slice_query_start_locs,BlockTables"
    ) -> tuple[int, str, dict[str, str]]:
        (tmp_path / "acme.toml").write_text(table)
        options = (f"--ops={ops}", "--examples=9", "--steps=5", *FEW)
        done = attnproof("verify", "--candidate", "acme.toml", *options, cwd=tmp_path)
        summary = tmp_path / "out/summary.json"
        verdicts = json.loads(summary.read_text())["operations"] if summary.exists() else []
        offered = {one["name"]: one["verdict"] for one in verdicts}
        return (
            done.returncode,
            done.stderr,
            {n: v for n, v in offered.items() if v in ("PASS", "FAIL")},
        )

    return run


def test_names_arguments_and_a_class_are_those_of_the_table(verify):
    assert verify(TABLE) == (0, "", {"slice_query_start_locs": "PASS", "BlockTables": "PASS"})
    wrong = TABLE.replace("replace=overwrite", "replace=True").replace("slice.start", "slice.stop")
    code, _, verdicts = verify(wrong)
    assert (code, verdicts) == (1, {"slice_query_start_locs": "FAIL", "BlockTables": "FAIL"})


def test_what_a_table_offers_has_the_place_of_the_candidates_own(tmp_path):
    own, table = tmp_path / "acme_places.py", tmp_path / "acme.toml"
    own.write_text(PLUGIN)
    table.write_text(TABLE.replace("src/acme/tables.py", own.name))
    spec = spec_from_file_location(own.stem, own)
    spec.loader.exec_module(module := module_from_spec(spec))
    offers = adapted(table, read_adapter(table), module)
    lines = PLUGIN.splitlines()
    assert place_of(offers, ["slice_query_start_locs"]) == f"{own}:{lines.index(PART) + 1}"
    assert place_of(offers, ["BlockTables"]) == f"{own}:{lines.index(INIT) + 1}"


def test_arguments_that_an_expression_leaves_unused_are_named(tmp_path):
    (path := tmp_path / "acme.toml").write_text(TABLE)
    assert unused_notes([str(path), "optimized"], "") == []
    path.write_text(TABLE.replace("part_of(query_start_loc", "part_of(SIZE"))
    assert unused_notes([str(path)], "BlockTables") == []
    [note] = unused_notes([str(path)], "BlockTables,slice_*")
    assert "slice_query_start_locs: the expression uses no query_start_loc: the cases" in note


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("modules = 1", "candidate file acme.toml: Object contains unknown field `modules`"),
        ("module = 1", "candidate file acme.toml: Expected `str`, got `int` - at `$.module`"),
        ("module =", "candidate file acme.toml: Invalid value"),
        (
            '[functions]\nslice_query_start_loc = "0"',
            "acme.toml:3: slice_query_start_loc: no operation has this name: "
            "did you mean slice_query_start_locs?",
        ),
        (
            '[functions]\nBlockTables = "Tables()"',
            "acme.toml:3: BlockTables: it belongs into the table [classes.BlockTables]",
        ),
        (
            '[classes.slice_query_start_locs]\nnew = "part_of()"',
            "acme.toml:2: slice_query_start_locs: it belongs into the table [functions]",
        ),
        (
            '[functions]\nslice_query_start_locs = "part_of("',
            "acme.toml:3: slice_query_start_locs: 'part_of(' is no expression: "
            "'(' was never closed",
        ),
        (
            '[functions]\nslice_query_start_locs = "part(query_start_loc)"',
            "acme.toml:3: slice_query_start_locs: part is neither an argument (query_start_loc, "
            "request_slice) nor a name of acme.tables: did you mean part_of?",
        ),
        (
            '[functions]\nslice_query_start_locs = "part_of(query_start_loc, 0, lasst=1)"',
            "acme.toml:3: slice_query_start_locs: part_of(offsets, first, last): no argument "
            "lasst: did you mean last?",
        ),
        (
            '[functions]\nslice_query_start_locs = "part_of(query_start_loc)"',
            "acme.toml:3: slice_query_start_locs: part_of(offsets, first, last): missing a "
            "required argument: 'first'",
        ),
        (
            '[classes.BlockTables]\nappend_block_ids = "it"',
            "acme.toml:2: BlockTables: the call that instantiates it is missing: new",
        ),
        (
            '[classes.BlockTables]\nnew = "Tables(1, 2)"\nappend_block_id = "it"',
            "acme.toml:4: BlockTables.append_block_id: BlockTables has no method of this name: "
            "did you mean append_block_ids?",
        ),
        (
            'interface = "vllm-0.3"',
            "acme.toml: interface: 'vllm-0.3' is no interface: did you mean vllm-0.32?",
        ),
    ],
)
def test_a_wrong_table_is_one_line_and_nothing_runs(verify, table, message):
    code, errors, verdicts = verify(table if "module" in table else HEAD + table)
    assert (code, verdicts) == (2, {})
    assert errors.count("\n") == 1
    assert message in errors


def test_the_table_of_the_page(verify, tmp_path):
    page = Path(__file__).parents[3] / "docs" / "candidates.md"
    (table,) = re.findall(r"^```toml\n(# acme\.toml\n.*?)^```$", page.read_text(), re.M | re.S)
    (tmp_path / "src/acme/attention").mkdir()
    (tmp_path / "src/acme/attention/__init__.py").touch()
    (tmp_path / "src/acme/attention/metadata.py").write_text(
        PLUGIN.replace("**others", "*others") + BATCHES
    )
    verdicts = {"slice_query_start_locs": "PASS", "split_decodes_and_prefills": "PASS"}
    assert verify(table, ops=",".join(verdicts)) == (0, "", verdicts)
    wrong = table.replace("uniform=require_uniform", "uniform=False")
    code, _, found = verify(wrong, ops="split_decodes_and_prefills")
    assert (code, found) == (1, {"split_decodes_and_prefills": "FAIL"})
    code, errors, _ = verify(table.replace("add(new_block_ids", "add(new_ids"))
    assert code == 2
    assert "BlockTables.append_block_ids: new_ids is neither an argument" in errors


def test_a_table_declares_the_interface(tmp_path):
    path = tmp_path / "acme.toml"
    path.write_text('module = "acme"\ninterface = "vllm-0.11"\n')
    (chosen,) = with_interface(resolve([str(path)], "auto"), "")
    assert interface_line(chosen) == "interface vllm-0.11 for acme: declared by its table"
