"""A candidate whose every text is hostile, by the real command line."""

from __future__ import annotations

import json

import junitparser
import pytest

from tests.harness.hostile import HOSTILE, assert_safe

CANDIDATE = """
TEXT = {text!r}
NOT_OFFERED = {{"get_mla_dims": TEXT}}
Error = type("Er" + TEXT.encode("utf-8", "replace").decode().replace("\\0", ""), (Exception,), {{}})

def is_block_tables_empty(block_tables):
    print(TEXT.encode("utf-8", "replace").decode())
    raise Error(TEXT)
"""
OPS = "is_block_tables_empty,get_mla_dims"
TEXT = "\n".join(HOSTILE.values())


@pytest.fixture(params=["evil.py", "-e 'v\n::error::i [b]l\x1b[31m\u202e\".py"])
def candidate(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / request.param).write_text(CANDIDATE.format(text=TEXT), encoding="utf-8")
    return request.param


@pytest.mark.slow
def test_verify_replay_and_list(candidate, attnproof, tmp_path):
    quick = ["--examples", "5", "--steps", "0", "--no-remember", "--jobs", "1"]
    done = attnproof("verify", "--candidate", candidate, "--ops", OPS, *quick, "--out", "-o ut")
    assert done.returncode == 1, done.stdout + done.stderr
    assert_safe(done.stdout)
    assert_safe(done.stderr)
    out = tmp_path / "-o ut"
    for name in ("summary.md", "junit.xml"):
        assert_safe((out / name).read_text(encoding="utf-8"))
    assert junitparser.JUnitXml.fromfile(str(out / "junit.xml")).tests == 2
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line)
    for finding in summary["findings"]:
        again = shell(finding["command"], attnproof)
        assert again.returncode == 1, again.stderr
        assert_safe(again.stdout)
        assert "FAIL is_block_tables_empty" in again.stdout
    listed = attnproof("list", "get_mla_dims", "--candidate", candidate)
    assert listed.returncode == 0
    assert_safe(listed.stdout)


def shell(command, attnproof):
    """Run a printed command as bash reads it, by the same attnproof."""
    import subprocess

    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True
    ).stdout.decode()
    name, *arguments = words.removesuffix("\0").split("\0")
    assert name == "attnproof"
    return attnproof(*arguments)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_arguments_are_echoed_as_text(text, monkeypatch, capsys):
    from attnproof.harness.cli import main

    for line in (["verify", "--ops", text], ["verify", f"--x{text}"], [f"x{text}"]):
        monkeypatch.setattr("sys.argv", ["attnproof", *line])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert_safe(capsys.readouterr().err)
