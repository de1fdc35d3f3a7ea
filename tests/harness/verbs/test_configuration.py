"""`[tool.attnproof]`: precedence, sources, paths, mistakes; and the page that describes it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from attnproof.harness.verbs.configuration import (
    KEYS,
    ConfigError,
    configured,
    find_file,
    setting_lines,
    settings,
)
from attnproof.harness.verbs.options import (
    BenchOptions,
    MutantsOptions,
    ReplayOptions,
    VerifyOptions,
)

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write the table into pyproject.toml, and work in a folder below it."""

    def write(table: str) -> Path:
        (tmp_path / "pyproject.toml").write_text(f"[tool.attnproof]\n{table}\n", encoding="utf-8")
        (tmp_path / ".git").mkdir(exist_ok=True)
        (tmp_path / "below").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "below")
        return tmp_path

    return write


def test_flag_over_file_over_default(project):
    project('contract = "strict"\nexamples = 7')
    options = configured(VerifyOptions, {"examples": 3})
    assert (options.contract, options.examples, options.steps) == ("strict", 3, None)


def test_sources_name_flag_file_and_default(project):
    project('contract = "strict"\nexamples = 7')
    found = {one.option: one for one in settings(VerifyOptions, {"examples": 3})}
    assert found["contract"][1:] == ("strict", "../pyproject.toml: contract")
    assert found["examples"][1:] == (3, "flag")
    assert found["steps"][1:] == (None, "default")
    assert len(list(setting_lines(list(found.values())))) == len(found)


def test_relative_paths_are_relative_to_the_file(project):
    root = project(
        'candidates = ["own.py", "./package", "vllm", "/abs/own.py"]\nout = "reports"\n'
        'traces = ["a.jsonl"]\ndeviations = ["known.toml", "vllm:0.11"]\ncorpus = "cases"'
    )
    options = configured(VerifyOptions, {})
    assert options.candidates == ["../own.py", "../package", "vllm", "/abs/own.py"]
    assert options.out.resolve() == root / "reports"
    assert options.traces == [Path("../a.jsonl")]
    assert options.deviations == ["../known.toml", "vllm:0.11"]
    assert options.corpus == Path("../cases")


def test_lists_of_names_are_joined_and_numbers_converted(project):
    project('ops = ["a", "b"]\nfail-on = ["unsafe", "type"]\ntimeout = 5\nremember = false')
    options = configured(VerifyOptions, {})
    assert (options.ops, options.fail_on, options.remember) == ("a,b", "unsafe,type", False)
    assert options.timeout_s == 5.0


def test_verbs_take_the_keys_that_mean_the_same_to_them(project):
    project('contract = "strict"\nseed = 9\nseconds = 1.5\nops = "a"')
    bench = configured(BenchOptions, {})
    assert (bench.contract, bench.ops, bench.seed, bench.seconds) == ("strict", "a", 0, 90.0)
    assert configured(ReplayOptions, {"case": "x"}).contract == "strict"


def test_mutants_keep_their_own_device_folder_and_numbers(project):
    project(
        'candidates = ["own.py"]\nops = "a"\ncontract = "strict"\nfail-on = "unsafe"\n'
        'interface = "vllm-0.10"\ndevice = "cuda"\nout = "o"\nexamples = 9\nseed = 9\njobs = 9'
    )
    assert configured(MutantsOptions, {}) == MutantsOptions(
        candidates=["../own.py"],
        ops="a",
        contract="strict",
        fail_on="unsafe",
        interface="vllm-0.10",
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("contarct = 1", "no key 'contarct': did you mean contract?"),
        ("zzz = 1", "no key 'zzz': expected one of candidates, "),
        ("contract = 3", "contract of [tool.attnproof] is 3, expected a text"),
        ("examples = true", "examples of [tool.attnproof] is True, expected a whole number"),
        ('examples = "7"', "examples of [tool.attnproof] is '7', expected a whole number"),
        ('candidates = "own.py"', "is 'own.py', expected a list of texts"),
        ("ops = [1]", "is [1], expected a list of texts"),
        ('remember = "no"', "is 'no', expected true or false"),
        ('out = ""', "is '', expected a path"),
        ("contract = ", "pyproject.toml is not TOML: "),
    ],
)
def test_a_mistake_is_one_line(project, table, message):
    project(table)
    with pytest.raises(ConfigError) as caught:
        configured(VerifyOptions, {})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_of_another_type_is_a_mistake(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[tool]\nattnproof = 3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="expected a table"):
        configured(VerifyOptions, {})


def test_the_nearest_file_counts_even_without_the_table(project, monkeypatch):
    root = project("examples = 7")
    (root / "below" / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    assert find_file() == root / "below" / "pyproject.toml"
    assert configured(VerifyOptions, {}).examples == VerifyOptions.examples
    assert find_file(root) == root / "pyproject.toml"


def test_config_prints_values_and_sources_only(project, attnproof):
    root = project('contract = "strict"')
    done = attnproof("config", "--examples", "10", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    assert ["contract", "strict", "pyproject.toml: contract"] in rows
    assert ["examples", "10", "flag"] in rows
    assert all(len(row) == 3 for row in rows)
    tree = json.loads(attnproof("config", "--json", cwd=root).stdout)
    assert tree["contract"] == {"value": "strict", "source": "pyproject.toml: contract"}


def test_bad_keys_end_each_verb_and_write_nothing(project, attnproof):
    root = project("examplez = 3")
    for verb in (["verify"], ["bench"], ["replay", "0123456789ab"], ["mutants"], ["config"]):
        done = attnproof(*verb, cwd=root)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines() == [
            "attnproof: pyproject.toml: [tool.attnproof] has no key 'examplez': "
            "did you mean examples?"
        ]
    assert sorted(path.name for path in root.iterdir()) == [".git", "below", "pyproject.toml"]


def test_verify_uses_the_file(project, attnproof):
    root = project(
        'candidates = ["own.py"]\nops = "is_block_tables_empty"\nexamples = 5\nsteps = 0\n'
        'out = "report"\nremember = false'
    )
    (root / "own.py").write_text(
        "from attnproof.reference import is_block_tables_empty\n", encoding="utf-8"
    )
    done = attnproof("verify", cwd=root / "below")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "is_block_tables_empty [own]" in done.stdout
    assert done.stderr.splitlines()[0] == "attnproof: ../pyproject.toml: candidates: ../own.py"
    assert (root / "report" / "summary.json").is_file()


@pytest.mark.parametrize("named", ["../pyproject.toml", "pyproject.toml"])
def test_a_file_outside_of_the_repository_is_not_read(named, project, monkeypatch):
    """A folder without a repository ends at itself, another one at its root."""
    root = project("examples = 7")
    (root / ".git").rmdir()
    if named == "pyproject.toml":
        monkeypatch.chdir(root)
    assert configured(VerifyOptions, {}).examples == (7 if named == "pyproject.toml" else None)
    (root / "below" / ".git").write_text("gitdir: elsewhere", encoding="utf-8")
    assert find_file(root / "below") is None


def test_a_case_is_replayed_by_no_code_of_a_file(project):
    project('candidates = ["own.py"]\ncontract = "strict"')
    options = configured(ReplayOptions, {"case": "x"})
    assert (options.candidates, options.contract) == ([], "strict")


@pytest.mark.parametrize("out", ["../elsewhere", "/elsewhere", "link/o", "a/../../b"])
def test_results_stay_in_the_repository(out, project):
    root = project(f'out = "{out}"')
    (root / "link").symlink_to("/tmp")
    with pytest.raises(ConfigError, match=f"expected a path in {root}$"):
        configured(VerifyOptions, {})


@pytest.mark.parametrize("owned", ["file", "link"])
def test_a_file_of_another_user_is_refused(owned, project, monkeypatch):
    root = project("examples = 7")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    file = root / "pyproject.toml"
    if owned == "link":
        file.rename(root / "real.toml")
        file.symlink_to("real.toml")
    if not os.getuid():
        os.chown(file, 4243, -1, follow_symlinks=False)
    with pytest.raises(ConfigError, match=r"belongs to user .* it may name code"):
        configured(VerifyOptions, {})
    file.unlink()
    file.write_text("[project]\n", encoding="utf-8")
    assert configured(VerifyOptions, {}).examples is None


def test_the_page_lists_all_keys_and_its_example_is_read(project):
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE) == list(KEYS)
    [example] = re.findall(r"```toml\n\[tool.attnproof\]\n(.*?)```", text, re.DOTALL)
    project(example)
    assert configured(VerifyOptions, {}).examples == 100
