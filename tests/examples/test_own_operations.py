"""The operations that examples/ defines: right candidates pass, each planted mistake is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ENGINE = EXAMPLES / "engine_operations"
NAMES = sorted(path.stem for path in ENGINE.glob("[a-z]*.py") if path.stem != "candidate")
FEW = ("--examples=25", "--no-vary", "--steps=0", "--no-remember", "--jobs=1", "--out=out")


@pytest.fixture
def verified(attnproof, tmp_path):
    """Verify a candidate; return the exit code, verdicts and first findings by operation."""

    def run(candidate: Path, *definitions: Path) -> tuple[int, dict[str, str], dict[str, str]]:
        options = [word for one in definitions for word in ("--operations", one)]
        done = attnproof("verify", "--candidate", candidate, *options, *FEW, cwd=tmp_path)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        text = (tmp_path / "out" / "summary.json").read_text(encoding="utf-8")
        summary = json.loads(text)
        verdicts = {
            one["name"]: one["verdict"]
            for one in summary["operations"]
            if one["verdict"] != "NOT OFFERED"
        }
        findings = {
            one["operation"]: f"{one['field']}: {one['diagnosis']}" for one in summary["findings"]
        }
        return done.returncode, verdicts, findings

    return run


@pytest.mark.parametrize(
    ("folder", "name", "finding"),
    [
        ("token_positions", "token_positions", "result[0]: "),
        ("token_buffer", "TokenBuffer", "[2].num_tokens: "),
        ("weighted_lengths", "weighted_lengths", "result[0]: beyond the tolerance"),
    ],
)
def test_a_worked_example(verified, folder, name, finding):
    path = EXAMPLES / folder
    right = verified(path / "right.py", path / "operations.py")
    assert right == (0, {name: "PASS"}, {})
    code, verdicts, findings = verified(path / "wrong.py", path / "operations.py")
    assert (code, verdicts) == (1, {name: "FAIL"})
    assert findings[name].startswith(finding)


PLANTED = {
    # a prompt is sent to the graph of the decodes (vllm#53051)
    "get_uniform_decode_token_count": ("decode_graph_eligible and ", ""),
    # the skipped parts are left out of the part, not of the chunk (vllm#28951)
    "compute_sub_block_ptrs": ("[places // factor]", "[torch.arange(len(output)) // factor]"),
    # 0 is a real slot (vllm#45324)
    "triton_convert_req_index_to_global_index": ("block_size, -1)", "block_size, 0)"),
}


def test_the_engine_operations(verified, tmp_path):
    definitions = [ENGINE / f"{name}.py" for name in NAMES]
    right = verified(ENGINE / "candidate.py", *definitions)
    assert right == (0, dict.fromkeys(NAMES, "PASS"), {})

    text = (ENGINE / "candidate.py").read_text(encoding="utf-8")
    for good, bad in PLANTED.values():
        assert text.count(good) == 1
        text = text.replace(good, bad)
    (tmp_path / "wrong.py").write_text(text, encoding="utf-8")
    code, verdicts, findings = verified(tmp_path / "wrong.py", *definitions)
    assert (code, verdicts) == (1, dict.fromkeys(NAMES, "FAIL"))
    assert findings.keys() == PLANTED.keys()
