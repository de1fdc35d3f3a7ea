"""Tests of --maxfail, -x, --quiet and --json."""

from __future__ import annotations

import json

import pytest

OPERATIONS = ("build_slot_mapping", "slice_query_start_locs", "split_attn_metadata")


@pytest.fixture
def verify(attnproof, tmp_path):
    lines = [f"def {name}(*a, **k):\n    raise ValueError\n" for name in OPERATIONS]
    (tmp_path / "bad.py").write_text("".join(lines))

    def run(*options):
        arguments = ["--candidate", "bad.py", "--ops", ",".join(OPERATIONS), "--jobs", "1"]
        arguments += ["--examples", "3", "--steps", "2", "--no-remember", "--contract", "engine"]
        return attnproof("verify", *arguments, *options, cwd=tmp_path)

    return run


def test_json_is_the_summary_alone_on_standard_output(verify, tmp_path):
    done = verify("--json", "--maxfail", "1")
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "reports/latest/summary.json").read_text())
    assert done.returncode == 1
    assert "FAIL" in done.stderr
    reasons = [one["reason"] for one in summary["operations"] if one["verdict"] == "UNVERIFIED"]
    assert reasons == ["not run: --maxfail 1"] * 2
    assert (summary["verdict"], len(summary["findings"])) == ("FAIL", 1)


def test_quiet_prints_the_findings_and_the_verdict(verify):
    done = verify("-x", "--quiet")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert "(unsafe): raises ValueError" in lines[0]
    assert lines[-1].startswith("FAIL (")
    assert "ADVICE" not in done.stdout
    assert "report:" not in done.stdout


def test_a_negative_maxfail_is_a_mistake(verify, tmp_path):
    done = verify("--maxfail", "-1")
    assert done.returncode == 2
    assert done.stderr == "attnproof: --maxfail is -1, expected a number from 0 to 1,000,000\n"
    assert not (tmp_path / "reports").exists()
