"""`--deviations`: exit code 0 and a line for each known deviation, in verify and replay."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import attnproof.harness.running.candidates as candidates
import attnproof.harness.running.engines as engines
from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.options import ReplayOptions, VerifyOptions
from attnproof.harness.verbs.replay import replay
from attnproof.harness.verbs.verify import verify
from tests.harness.conftest import CANDIDATES

SPLIT = "split_decodes_and_prefills"
ENTRY = """
[[deviation]]
id = "{id}"
title = "{title}"
operations = ["split_decodes_and_prefills"]
versions = "*"
reference = "two_bugs.py"
when = "{when}"
"""
EXTRA = ENTRY.format(id="D2", title="one token too many", when="params['decode_threshold'] != 8")
LATE = ENTRY.format(id="D1", title="loses a decode", when="params['decode_threshold'] == 8")
GONE = ENTRY.format(id="D3", title="gone", when="R > 10000")


@pytest.fixture
def verified(tmp_path):
    """Run `verify` on two_bugs.py with the given entries."""
    path = tmp_path / "known.toml"

    def run(text, **options):
        path.write_text(text, encoding="utf-8")
        small = {"examples": 20, "steps": 0, "seed": 4, "remember": False} | options
        chosen = VerifyOptions(
            ops=SPLIT,
            candidates=[str(CANDIDATES / "two_bugs.py")],
            out=tmp_path / "out",
            deviations=[str(path)],
            **small,
        )
        return verify(chosen)

    return run


def test_known_deviations_pass_and_are_printed_and_replayed(verified, tmp_path, capfd):
    assert verified(EXTRA + LATE + GONE) == 0
    said = capfd.readouterr().out
    assert f"DEVIATES    {SPLIT} [two_bugs]" in said
    [command] = re.findall(r"KNOWN  .* D2: one token too many; \d+ cases?; (.*)", said)
    assert command.endswith(f" --deviations {tmp_path / 'known.toml'}")
    assert "STALE" not in said, "fewer examples than usual make nothing stale"
    case = command.split()[2]
    known = tmp_path / "known.toml"
    by = [str(CANDIDATES / "two_bugs.py")]
    saved = ReplayOptions(case=case, candidates=by, out=tmp_path / "out")
    assert replay(replace(saved, deviations=[str(known)])) == 0
    assert f"KNOWN {SPLIT} [two_bugs] D2: one token too many" in capfd.readouterr().out
    assert replay(saved) == 1


def test_an_invalid_file_is_reported_before_the_run(verified, tmp_path):
    with pytest.raises(UsageError, match=r"entry 1 \(D2\): no operation 'nonesuch'"):
        verified(EXTRA.replace(SPLIT, "nonesuch"))
    assert not (tmp_path / "out").exists()


def test_without_vllm_its_candidate_is_one_line(monkeypatch):
    absent = {"vllm": None}
    monkeypatch.setattr(engines, "find_spec", lambda name: absent.get(name, name))
    for name in ("vllm", "attnproof.harness.adapters.vllm"):
        with pytest.raises(UsageError, match=f"candidate {name}: vLLM is not installed; `tox"):
            candidates.resolve([name], "auto")


def test_vllm_has_known_deviations_of_its_own(monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda _name: object())
    [candidate] = candidates.resolve(["vllm"], "auto")
    assert (candidate.name, candidate.target) == ("vllm", "attnproof.harness.adapters.vllm")
    [path] = candidate.deviations
    assert path.endswith("vllm_deviations.toml")
    [dotted] = candidates.resolve(["attnproof.harness.adapters.vllm"], "auto")
    assert dotted.deviations == candidate.deviations
    assert "vllm" not in [candidate.name for candidate in candidates.resolve([], "auto")]
