"""The command line: help, exit codes, one line for every usage error."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from attnproof import __version__
from attnproof.harness.cli import app, main
from attnproof.harness.operations import ALL
from attnproof.harness.verbs import verification
from tests.wrong_calls import WRONG_CALLS

VERBS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,10,20\n"
FILES = {
    "syntax.py": "def broken(:\n",
    "empty.py": "x = 1\n",
    "unimportable.py": "import a_module_that_is_not_there\n",
    "unreadable.py": "def __getattr__(name):\n    raise RuntimeError('no names here')\n",
    "package/readme.txt": "no Python here\n",
    "no_rows.csv": "",
    "bad_cell.csv": AZURE + "2023-11-16 18:15:47.0,ten,20\n",
    "bad_columns.csv": AZURE + "2023-11-16 18:15:47.0,20\n",
    "unknown_columns.csv": "a,b\n1,2\n",
    "file": "a regular file\n",
    "corrupt/case.json": '{"schema":',
    "no_case.json": '{"a": 1}',
    "old_case.json": '{"schema": "attnproof.case/0", "case": {"operation": "x"}}',
    "no_operation.json": '{"case": {"operation": "x"}}',
    "no_fault/case.json": '{"case": {"operation": "get_kv_cache_layout", "fault": "x"}}',
}

MISTAKES = [
    (
        "verify --ops splt_decodes_and_prefills",
        "no operation 'splt_decodes_and_prefills': did you mean split_decodes_and_",
    ),
    ("verify --ops zzz", "no operation 'zzz': `attnproof list` prints all names"),
    ("list frobnicate", "no operation 'frobnicate': `attnproof list` prints all names"),
    ("list --markdown --candidate mine", "--markdown lists no candidates: leave out --candidate"),
    ("verify --ops ,", "no operation '' in ',': drop a comma"),
    ("verify --candidate nope", "no candidate 'nope': not built in or installed (optimized, "),
    ("verify --candidate=", "--candidate is empty: give it a value, or leave it out"),
    ("verify --candidate nope.py", "candidate file nope.py does not exist"),
    ("verify --candidate syntax.py", "candidate file syntax.py, line 1: invalid syntax"),
    ("verify --candidate package", "candidate file package/__init__.py does not exist"),
    ("verify --examples -1", "--examples is -1, expected a number from 0 to 1,000,000"),
    ("verify --examples 0", "--examples is 0, expected at least 1"),
    ("verify --steps -1", "--steps is -1, expected a number from 0 to 1,000,000"),
    ("verify --jobs -1", "--jobs is -1, expected a number from 0 to 1,000,000"),
    ("verify --seed -1", "--seed is -1, expected a number of at least 0"),
    ("verify --seconds nan", "--seconds is nan, expected a number from 0 to 1,000,000"),
    ("verify --memory inf", "--memory is inf, expected a number from 0 to 1,000,000"),
    ("verify --seconds -1", "--seconds is -1.0, expected a number from 0 to 1,000,000"),
    ("verify --steps 0 --trace t.csv", "--trace with --steps 0 takes no step of the trace"),
    ("verify --memory 0", "--memory is 0, expected at least 0.1 (GiB)"),
    (
        "verify --device tpu",
        "--device is 'tpu': did you mean xpu? expected auto, interpreter",
    ),
    (
        "bench --markdown nowhere/table.md",
        "--markdown nowhere/table.md: there is no folder nowhere",
    ),
    ("bench --seconds 0", "--seconds is 0, expected more than 0 and at most 36,000"),
    (
        "bench --device interpreter",
        "--device is 'interpreter': bench times on cpu and cuda only",
    ),
    ("bench --save-baseline a/b", "baseline 'a/b': a name is letters, digits, '-', '_' and '.'"),
    ("bench --steps 0 --trace t.csv", "--trace with --steps 0 takes no step of the trace"),
    ("verify --trace none.csv", "none.csv: cannot be read (No such file or directory); give the"),
    ("verify --trace no_rows.csv", "no_rows.csv: is empty; give the path of a trace with at least"),
    ("verify --trace bad_cell.csv", "bad_cell.csv:3: contexttokens is 'ten', not a whole number"),
    ("verify --trace bad_columns.csv", "bad_columns.csv:3: 2 columns where the header has 3; "),
    ("verify --trace unknown_columns.csv", "unknown_columns.csv:1: unknown trace format (columns:"),
    ("verify --corpus none", "corpus none is not a folder"),
    ("verify --corpus package", "corpus package holds no case file (*.json)"),
    ("verify --corpus corrupt", "case file corrupt/case.json is corrupt: "),
    ("replay corrupt/case.json", "case file corrupt/case.json is corrupt: "),
    ("replay no_case.json", "case file no_case.json is not a case: "),
    ("replay old_case.json", "case file old_case.json has schema 'attnproof.case/0', expected "),
    ("replay no_operation.json", "case file no_operation.json: no operation 'x'"),
    (
        "replay no_fault/case.json",
        "case file no_fault/case.json: get_kv_cache_layout has no fault 'x'",
    ),
    ("verify --corpus no_fault", "case file no_fault/case.json: get_kv_cache_layout has no fault"),
    ("verify --timeout nan", "--timeout is nan, expected more than 0 and at most 1,000,000"),
    ("verify --timeout 0", "--timeout is 0, expected more than 0 and at most 1,000,000"),
    ("replay none.json --timeout -5", "--timeout is -5, expected more than 0 and at most 1,"),
    ("replay none.json --timeout nan", "--timeout is nan, expected more than 0 and at most 1,"),
    (
        "replay none.json --device tpu",
        "--device is 'tpu': did you mean xpu? expected auto, interpreter",
    ),
    ("replay none.json", "case file none.json cannot be read: No such file or directory"),
    ("replay abcdef123456", "no case 'abcdef123456': not a file, and not a case of the run in "),
]
MISTAKES_SEEN_AFTER_AN_IMPORT = [
    ("verify --candidate empty.py", "candidate empty offers none of the operations asked for: "),
    (
        "verify --candidate unimportable.py",
        "candidate unimportable cannot be imported: ModuleNotFoundError: No module named "
        "'a_module_that_is_not_there'",
    ),
    (
        "verify --candidate unreadable.py",
        "candidate unreadable cannot be imported: RuntimeError: no names here",
    ),
]
MISUSES = [
    ("frobnicate", "No such command 'frobnicate' (`attnproof -h` lists the verbs)"),
    ("verify --frob", "No such option: --frob"),
    ("verif", "No such command 'verif'. Did you mean 'verify'?"),
    ("verify --exampels 3", "No such option: --exampels"),
    ("verify extra", "unexpected extra argument"),
    ("doctor extra", "unexpected extra argument"),
    ("diff reports", "Missing argument 'RUN_B'"),
    ("deviations", "Missing option '--draft'"),
    ("init new.py", "Missing option '--from'"),
    ("record", "Missing argument 'COMMAND'"),
    ("campaign --hours long", "--hours is 'long', expected a number such as --hours 1.0"),
    ("verify --examples many", "--examples is 'many', expected a whole number such as"),
    ("replay", "Missing argument 'case'"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with invalid inputs, and the report of an earlier run."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    report = tmp_path / "reports" / "latest"
    report.mkdir(parents=True)
    (report / "index.html").write_text("the report of an earlier run", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    """Return all files and their bytes, without Python's caches."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if path.suffix != ".pyc"}


def run_here(line: str, monkeypatch) -> object:
    monkeypatch.setattr(sys, "argv", ["attnproof", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def run(*arguments: str, module: str = "attnproof") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _run_nothing(*_arguments: object) -> None:
    raise AssertionError("a wrong call runs cases")


ALL_MISTAKES = MISTAKES + WRONG_CALLS


@pytest.mark.parametrize(("line", "message"), ALL_MISTAKES, ids=[line for line, _ in ALL_MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(folder, line, message, monkeypatch, capsys):
    monkeypatch.setattr(verification, "run", _run_nothing)
    before = contents(folder)
    code = run_here(line, monkeypatch)
    shown = capsys.readouterr()
    assert code == 2
    assert shown.err.startswith(f"attnproof: {message}"), shown.err
    assert shown.err.count("\n") == 1, shown.err
    assert shown.out == ""
    assert contents(folder) == before


@pytest.mark.parametrize(("line", "message"), MISTAKES_SEEN_AFTER_AN_IMPORT)
def test_a_mistake_seen_late_writes_nothing_either(folder, attnproof, line, message):
    before = contents(folder)
    done = attnproof(*line.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith(f"attnproof: {message}"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    assert contents(folder) == before


@pytest.mark.parametrize(("line", "message"), MISUSES, ids=[line for line, _ in MISUSES])
def test_a_misuse_shows_how_to_use_it(folder, line, message, monkeypatch, capsys):
    assert run_here(line, monkeypatch) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("attnproof: ")
    assert shown.err.count("\n") == 1, shown.err
    assert shown.out == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb, monkeypatch, capsys):
    assert run_here(f"{verb} --help", monkeypatch) == 0
    shown = capsys.readouterr().out
    assert f"attnproof {verb}" in shown
    assert len(shown.splitlines()) > 3


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_begins_with_examples(verb, monkeypatch, capsys):
    assert run_here(f"{verb} --help", monkeypatch) == 0
    usage, empty, example, *_ = capsys.readouterr().out.splitlines()
    assert usage.startswith("Usage: ")
    assert empty == ""
    assert example.startswith(f"  $ attnproof {verb.removesuffix('_')}")


def test_the_help_says_where_to_start_and_cuts_no_summary(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_here("--help", monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "Start with: attnproof verify --candidate" in shown
    assert shown.partition("Commands:\n")[2].startswith("  verify ")
    assert "..." not in shown.partition("\n")[2]
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.partition("Examples:")[2].count("attnproof ") == 3


def test_an_empty_argument_of_a_recorded_command_is_its_own(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["attnproof", "record", "--", "test", "-z", ""])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3, capfd.readouterr().err


def test_a_list_on_a_narrow_terminal_or_in_a_pipe_has_whole_names(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_here("list", monkeypatch) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    names = {words[1] for words in map(str.split, shown) if len(words) > 1}
    assert [name for name in ALL if name not in names] == []
    monkeypatch.delenv("COLUMNS")
    assert run_here("list", monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines[1 : lines.index("")]} == set(ALL)
    assert not any(line.endswith(" ") for line in lines)
    assert run_here("list --wide", monkeypatch) == 0
    assert "interfaces" in capsys.readouterr().out


def test_the_verbs():
    assert {"verify", "replay", "list", "doctor"} <= set(VERBS)


def test_the_module_is_the_command():
    program = Path(sys.executable).with_name("attnproof")
    command = subprocess.run([program, "-h"], capture_output=True, text=True, check=True)
    module = run("-h")
    assert module.returncode == 0
    assert module.stdout.replace("python -m attnproof", "attnproof") == command.stdout


def test_help_is_quick():
    def seconds() -> float:
        started = resource.getrusage(resource.RUSAGE_CHILDREN)
        run("--help")
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime

    run("--help")
    # CPU time, and the best of three: a loaded machine must not fail this. torch alone takes
    # over a second.
    assert min(seconds() for _ in range(3)) < 0.8


def test_collections_go_on_after_the_imports_of_a_verb(monkeypatch, capsys):
    run_here("list build_slot_mapping --wide", monkeypatch)
    assert gc.isenabled()


def test_version(monkeypatch, capsys):
    assert run_here("--version", monkeypatch) == 0
    assert capsys.readouterr().out == f"attnproof {__version__}\n"


def test_patterns_and_parts_of_names(monkeypatch, capsys):
    assert run_here("list is_block_tables_*", monkeypatch) == 0
    assert "is_block_tables_empty(block_tables:" in capsys.readouterr().out
    assert run_here("list newslot", monkeypatch) == 2
    assert "did you mean compute_new_slot_mapping?" in capsys.readouterr().err


def test_list_describes_one_operation(monkeypatch, capsys):
    wrong = str(Path(__file__).parents[1] / "examples/wrong_backend.py")
    named = ["list", "is_block_tables_empty", "--candidate", wrong]
    assert run_here(" ".join(named), monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "is_block_tables_empty(block_tables:" in shown
    assert "wrong_backend  not offered" in shown
    assert "TypeError on block_tables" in shown


def test_the_page_of_operations_describes_each(monkeypatch, capsys):
    assert run_here("list --markdown", monkeypatch) == 0
    page = capsys.readouterr().out
    for name, operation in ALL.items():
        _, _, entry = page.partition(f"\n## {name}\n")
        entry = entry.partition("\n## ")[0]
        assert f"SPEC section {operation.section}: {operation.summary}" in entry
        assert all(fault in entry for fault in operation.inputs.faults)


def test_list_names_every_operation_in_a_pipe(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run_here("list", monkeypatch) == 0
    shown = capsys.readouterr().out
    assert [name for name in ALL if name not in shown] == []


def test_doctor_passes_on_this_machine():
    done = run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("verify can run here\n")


@pytest.mark.slow
def test_a_closed_pipe_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "attnproof", "list", "--markdown"]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(writer)
    assert "Traceback" not in done.stderr
