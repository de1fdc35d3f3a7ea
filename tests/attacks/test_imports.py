"""Code of a candidate runs in workers only, and ends no run with a verdict of its own."""

from __future__ import annotations

import json

import pytest

from tests.attacks.runs import OPERATION, QUICK, command, shell, verify

WRONG = f"def {OPERATION}(*arguments): return 3\n"
REMEMBER = "import os; print(os.getpid(), os.getsid(0), file=open('imports', 'a'))\n"
PLUGIN = "[attnproof.candidates]\nplugin = pk.mod\n"
NAMES = {"module": "pk.mod", "deep module": "pk.sub.mod", "entry point": "plugin", "folder": "./pk"}


@pytest.fixture
def package(tmp_path):
    """A package with a wrong function in each module, an entry point, and a note of its imports."""
    (tmp_path / "pk" / "sub").mkdir(parents=True)
    for name in ("__init__", "mod", "sub/mod"):
        (tmp_path / "pk" / f"{name}.py").write_text(REMEMBER + WRONG, encoding="utf-8")
    info = tmp_path / "pk-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pk\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(PLUGIN)
    case = json.dumps({"schema": "attnproof.case/1", "case": CASE})
    (tmp_path / "case.json").write_text(case, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("verb", ["verify", "replay"])
def test_a_candidate_is_imported_in_workers_only(name, verb, package):
    words = ["--ops", OPERATION, *QUICK, "--out", "o"] if verb == "verify" else ["case.json"]
    run = command(verb, *words, "--candidate", name, folder=package)
    run.end().assert_orderly(1)
    imports = [line.split() for line in (package / "imports").read_text().splitlines()]
    assert imports
    # A worker is the only process of a run that leads a session, but for the main one.
    assert all(pid == session != str(run.pid) for pid, session in imports)


CASE = {
    "operation": OPERATION,
    "batch": {"block_size": 2, "query_lens": [1], "computed_lens": [0], "blocks": [[0]]},
    "params": {"start": 0, "stop": 1},
}
ENDS = {
    "exit": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "exit at once": ("import os; os._exit(0)", "ends the process with status 0"),
    "error": ("raise RuntimeError('no GPU')", "RuntimeError: no GPU"),
    "base error": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
}


@pytest.mark.parametrize("name", ["pk.mod", "plugin"])
@pytest.mark.parametrize(("code", "words"), ENDS.values(), ids=ENDS)
def test_a_package_that_ends_its_process_is_named(code, words, name, package):
    (package / "pk" / "__init__.py").write_text(code, encoding="utf-8")
    ended = verify(package, "--candidate", name).end()
    ended.assert_orderly(2)
    assert words in ended.err
    assert "cannot be imported" in ended.err


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("import sys; sys.exit(0)", 2, "cannot be imported: SystemExit: 0"),
        ("import os; os._exit(0)", 5, "there is no verdict"),
    ],
)
def test_a_candidate_of_mutants_ends_no_command_with_success(code, status, words, package):
    """Mutants are planted where the candidate is imported: in the process of the verb."""
    (package / "pk" / "__init__.py").write_text(code, encoding="utf-8")
    line = f"exec $attnproof mutants --candidate ./pk --ops {OPERATION} --out o"
    ended = shell(line, package).end()
    ended.assert_orderly(status)
    assert words in ended.err


def test_a_worker_cannot_report_for_the_command(package):
    (package / "pk" / "__init__.py").write_text(
        "import os\n"
        "for number in range(3, 100):\n"
        "    try: os.write(number, b'\\0') if not os.path.exists('o/x') else None\n"
        "    except OSError: pass\n" + WRONG,
        encoding="utf-8",
    )
    line = f"exec $attnproof verify --candidate ./pk --ops {OPERATION} {' '.join(QUICK)} --out o"
    ended = shell(line, package).end()
    ended.assert_orderly(2, 3)
    assert "there is no verdict" not in ended.err


def test_a_package_cannot_replace_a_function_of_the_judge(package):
    (package / "pk" / "__init__.py").write_text(
        "from attnproof.harness import oracles\n"
        "from attnproof.harness.oracles import equality\n"
        f"from attnproof import reference\nreference.{OPERATION} = lambda *arguments: 3\n"
        "for module in (oracles, equality):\n"
        "    for name, value in list(vars(module).items()):\n"
        "        if callable(value): setattr(module, name, lambda *a, **k: None)\n",
        encoding="utf-8",
    )
    verify(package, "--candidate", "pk.mod").end().assert_orderly(1)


@pytest.mark.parametrize(
    ("dependency", "code"),
    [("typer", "import sys; sys.exit(0)"), ("junitparser", "import os; os._exit(0)")],
)
def test_a_dependency_that_ends_the_process_is_no_success(dependency, code, tmp_path):
    (tmp_path / f"{dependency}.py").write_text(code, encoding="utf-8")
    line = f"verify --ops {OPERATION} --candidate reference {' '.join(QUICK)} --out o"
    ended = shell(f"PYTHONPATH={tmp_path}:$PYTHONPATH exec $attnproof {line}", tmp_path).end()
    ended.assert_orderly(5)
    assert "there is no verdict" in ended.err
    assert not (tmp_path / "o" / "summary.json").exists()
