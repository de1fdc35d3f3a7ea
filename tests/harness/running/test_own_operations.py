"""Operations of users: what is registered, and the one line for what is not."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec

import pytest

from attnproof import reference
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.operations.derived.remarks import unchecked_independence
from attnproof.harness.running import own_operations, own_trial
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.own_operations import (
    VARIABLE,
    definition_in_use,
    own_names,
    sources_in_use,
    use_operations,
)

HEAD = """\
import os, signal
from typing import Annotated
import torch
from attnproof.define import Array, SeqLens, operation
Numbers = Annotated[torch.Tensor, Array(shape=("N",))]

"""
DOUBLED = """
@operation
def doubled(seq_lens: SeqLens) -> Annotated[torch.Tensor, Array(shape=("R",))]:
    '''Return twice each length.'''
    return seq_lens * 2
"""


RANK = """
from attnproof.define import Int
@operation
class Rank:
    '''Count calls.'''
    def __init__(self, size: int, rank: Annotated[int, Int(below="size")]) -> None:
        self.rank, self.calls = rank, 0
    def call(self) -> int:
        self.calls += 1
        return self.calls
"""


FOLLOWING = """
@operation(values={"count": lambda values: values.%s})
def counted(seq_lens: SeqLens, count: int) -> int:
    '''Return the number.'''
    return count
"""
"""An operation with an argument that follows from the batch."""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file of definitions after the usual imports; what it registers is removed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_operations, "_registered", {})

    def run(text: str, name: str = "ops.py") -> str:
        (tmp_path / name).write_text(HEAD + text, encoding="utf-8")
        return name

    before = set(ALL)
    yield run
    assert set(ALL) - before == own_names(), "a refused file left operations behind"
    for name in own_names():
        del ALL[name]
        delattr(reference, name)


def refusal(source: str) -> str:
    """Return the line with which a source is refused; nothing of it is registered."""
    with pytest.raises(UsageError) as caught:
        use_operations([source])
    assert own_names() == set()
    assert os.environ[VARIABLE] == ""
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestRegistration:
    def test_a_file(self, write):
        use_operations([write(DOUBLED)])
        assert own_names() == {"doubled"}
        assert ALL["doubled"].summary == "Return twice each length"
        assert sources_in_use() == ["ops.py"]

    def test_a_file_that_is_named_twice_is_read_once(self, write, tmp_path):
        write("print('read')\n" + DOUBLED)
        use_operations(["ops.py", str(tmp_path / "ops.py")])
        use_operations(["./ops.py"])
        assert sources_in_use() == ["ops.py"]

    def test_a_module(self, write, tmp_path):
        write(DOUBLED, "definitions_of_mine.py")
        sys.path.insert(0, str(tmp_path))
        use_operations(["definitions_of_mine"])
        assert own_names() == {"doubled"}
        assert sources_in_use() == ["definitions_of_mine"]

    def test_processes_that_start_anew_read_the_environment(self, write, monkeypatch):
        use_operations([write(DOUBLED)])
        monkeypatch.setattr(own_operations, "_registered", {})
        del ALL["doubled"]
        delattr(reference, "doubled")
        use_operations()
        assert own_names() == {"doubled"}

    def test_an_installed_package(self, write, tmp_path):
        write(DOUBLED, "installed_definitions.py")
        folder = tmp_path / "mine-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(
            "[attnproof.operations]\nmine = installed_definitions\n"
        )
        sys.path.insert(0, str(tmp_path))
        use_operations()
        assert own_names() == {"doubled"}
        assert sources_in_use() == []

    def test_two_files_beside_files_of_their_own(self, write):
        write("FACTOR = 2", "parts.py")
        use_operations([write("import parts\n" + DOUBLED)])
        use_operations([write(DOUBLED.replace("doubled", "twice"), "more.py")])
        assert own_names() == {"doubled", "twice"}

    def test_an_object_with_two_names_is_one_operation(self, write):
        use_operations([write(f"{DOUBLED}\ntwice = doubled\n")])
        assert own_names() == {"doubled"}

    def test_limits_of_values_of_a_batch_leave_cases_out(self, write):
        definition = "Annotated[torch.Tensor, Array('sequence lengths', least=1, below=100)]"
        use_operations([write(DOUBLED.replace("seq_lens: SeqLens", f"seq_lens: {definition}"))])
        batches = [case.batch for _, case in ALL["doubled"].inputs.boundaries()]
        rows = (zip(b.query_lens, b.computed_lens, strict=True) for b in batches)
        lengths = [sum(row) for batch_rows in rows for row in batch_rows]
        assert len(batches) > 5
        assert 1 <= min(lengths) <= max(lengths) < 100

    def test_a_class_that_refuses_arguments_of_its_instantiation(self, write):
        use_operations([write(RANK)])
        operation = ALL["Rank"]
        cases = [case for _, case in operation.inputs.boundaries()]
        assert len(cases) > 5
        assert not any(operation.inputs.problem(case) for case in cases)
        params = {**cases[0].params, "size": 0}
        assert "instantiation" in operation.inputs.problem(Case("Rank", None, params))

    def test_a_number_of_numpy_that_follows_is_one_of_python(self, write):
        use_operations([write(FOLLOWING % "batch.seq_lens.sum() + values.block_size")])
        _, case = next(ALL["counted"].inputs.boundaries())
        assert ALL["counted"].call.prepare(case, 0, "cpu")["count"] == 14 + 4

    def test_an_imported_definition_is_not_defined_again(self, write):
        write(DOUBLED, "first.py")
        use_operations([write("from first import doubled\n" + DOUBLED.replace("doubled", "twice"))])
        assert own_names() == {"twice"}


class TestRefusedFiles:
    def test_a_file_that_does_not_exist(self, write):
        assert refusal("none.py") == "--operations none.py: no such file"

    def test_a_module_that_does_not_exist(self, write):
        text = refusal("no_such_definitions")
        assert text.startswith("no_such_definitions cannot be imported: ModuleNotFoundError: ")

    def test_a_file_that_fails_to_import(self, write):
        text = refusal(write("\n1 / 0"))
        assert text == "ops.py:8 cannot be imported: ZeroDivisionError: division by zero"

    def test_a_file_with_a_mistake_in_its_syntax(self, write):
        text = refusal(write("def f(:\n    pass"))
        assert text.startswith("ops.py:7 cannot be imported: SyntaxError: ")

    def test_a_file_that_exits(self, write):
        text = refusal(write("raise SystemExit(0)"))
        assert text == "ops.py:7 cannot be imported: SystemExit: 0"

    def test_a_file_that_defines_nothing(self, write):
        text = refusal(write(""))
        assert text == "ops.py defines no operation: decorate a reference with @operation"

    def test_a_definition_that_says_too_little(self, write):
        text = refusal(write(DOUBLED.replace('"R"', '"M"')))
        assert text.startswith("ops.py:8: doubled: result: nothing determines the size M: ")

    @pytest.mark.parametrize("name", ["build_slot_mapping", "MetadataError"])
    def test_a_name_that_is_taken(self, write, name):
        text = refusal(write(DOUBLED.replace("doubled", name)))
        assert text == (
            f"ops.py:8: the name {name} is taken by an operation or class of attnproof: give "
            "yours another one with @operation(name=...)"
        )

    def test_a_name_that_the_file_has_twice(self, write):
        again = DOUBLED.replace("@operation", "@operation(name='doubled')").replace(
            "def d", "def D"
        )
        text = refusal(write(DOUBLED + again))
        assert text == (
            "ops.py:13: the name doubled is taken at ops.py:8: give one of them another one with "
            "@operation(name=...)"
        )

    def test_a_name_that_is_none(self, write):
        text = refusal(write(DOUBLED.replace("@operation", "@operation(name='a b')")))
        assert text == "ops.py:8: 'a b' is no name of a function"

    def test_nothing_to_compare(self, write):
        text = refusal(
            write(
                DOUBLED.replace("Annotated[torch.Tensor, Array(shape=('R',))]", "None").replace(
                    'Annotated[torch.Tensor, Array(shape=("R",))]', "None"
                )
            )
        )
        assert text == "ops.py:8: doubled has no result to compare: it returns and writes nothing"


class TestRefusedReferences:
    """The reference of a function is called on its first cases, in a process of its own."""

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            ("raise ValueError('a\\nb')", "raises ValueError: a\\nb"),
            ("os._exit(3)", "ends its process with status 3"),
            ("raise SystemExit(0)", "raises SystemExit: 0"),
            ("os.kill(os.getpid(), signal.SIGKILL)", "ends its process by signal 9"),
            ("os._exit(0)", "ends its process with status 0"),
            (
                "return None",
                "returns what it does not declare: ops.py:8: doubled: result is NoneType, "
                "declared is Tensor",
            ),
        ],
    )
    def test_a_reference_that_goes_wrong(self, write, body, problem):
        text = refusal(write(DOUBLED.replace("return seq_lens * 2", body)))
        assert text == (f"ops.py:8: the reference of doubled {problem}, on the case 'mixed batch'")

    def test_an_argument_that_is_filled_and_not_declared_so(self, write):
        body = "seq_lens += 1; return seq_lens.clone()"
        assert refusal(write(DOUBLED.replace("return seq_lens * 2", body))) == (
            "ops.py:8: the reference of doubled changes its input seq_lens, on the case 'mixed "
            "batch': if it is to be filled, declare it with Array(..., written=True)"
        )

    def test_a_result_with_a_role_of_the_batch_has_its_values(self, write):
        text = DOUBLED.replace('Annotated[torch.Tensor, Array(shape=("R",))]', "SeqLens")
        assert "contradicts its declaration: result differs from the sequence lengths" in refusal(
            write(text)
        )

    def test_a_function_of_values_that_raises(self, write):
        assert refusal(write(FOLLOWING % "sizes['E']")) == (
            """ops.py:8: values["count"] of counted raises KeyError: 'E'"""
        )

    @pytest.mark.parametrize(
        ("values", "problem"),
        [
            ('"a": lambda v: v["b"][1:]', '"a"] of total is of shape [2], [3] is declared: '),
            (
                '"a": lambda v: np.arange(3), "b": lambda v: np.arange(4)',
                '"b"] of total is of shape [4], [3] is declared: <numbers (N) int32|int64>',
            ),
        ],
    )
    def test_values_of_another_size_than_the_other_arrays(self, write, values, problem):
        text = f"""
import numpy as np
@operation(values={{{values}}})
def total(a: Numbers, b: Numbers) -> int:
    '''Return the sum.'''
    return int((a + b).sum())
"""
        assert refusal(write(text)).startswith(f"ops.py:9: values[{problem}")

    def test_state_that_is_no_attribute(self, write):
        text = RANK.replace("@operation", "@operation(state=('cals',))")
        assert "has no attribute [0].cals, which is declared as its state" in refusal(write(text))

    def test_a_reference_that_does_not_return(self, write, monkeypatch):
        monkeypatch.setattr(own_trial, "TRIAL_S", 0.2)
        text = refusal(write(DOUBLED.replace("return seq_lens * 2", "while True: pass")))
        assert "doubled does not return within 0.2 s, on the case 'mixed batch'" in text

    def test_a_reference_that_a_number_without_a_limit_is_too_large_for(self, write):
        text = refusal(
            write(
                RANK.replace(
                    "self.rank, self.calls = rank",
                    "self.all = [0] * size; self.rank, self.calls = rank",
                )
            )
        )
        assert "Rank allocates more than 1 GiB, on the case 'size 2147483647'" in text
        assert text.endswith(": declare it with Int(below=...)")

    def test_a_reference_of_a_class_that_goes_wrong(self, write):
        text = refusal(
            write(
                """
@operation
class Buffer:
    '''Keep numbers.'''
    def __init__(self):
        self.kept = []
    def add(self, numbers: Numbers) -> int:
        return self.missing
"""
            )
        )
        assert text.startswith("ops.py:8: the reference of Buffer raises AttributeError: ")
        assert text.endswith(", on the case 'every method in turn'")


class TestRemarks:
    """`list` and a failing operation print the remarks on a definition."""

    SUMS = """
@operation(independent=True)
def sums(seq_lens: Annotated[torch.Tensor, Array(shape=("R",), below=9)], more: Numbers) -> int:
    '''Return the sum, of as many as there are.'''
    return sum(a + b for a, b in zip(seq_lens.tolist(), more.tolist()))
"""
    AXES = (
        "sums: the axis R is in seq_lens only, so its size is drawn by itself: give arrays of one "
        "size one axis; R, T and W are a batch's only beside a role such as SeqLens",
        "sums: the axis N is in more only, so its size is drawn by itself: give arrays of one "
        "size one axis",
    )

    def test_axes_of_one_array(self, attnproof, write, tmp_path):
        write(self.SUMS)
        (tmp_path / "mine.py").write_text("def sums(a, b):\n    return int((a + b).sum())\n")
        options = ("--operations=ops.py", "--examples=1", "--no-vary", "--steps=0", "--out=out")
        done = attnproof("verify", "--candidate", "mine.py", *options, cwd=tmp_path)
        assert done.returncode == 1
        notes = [text for text in done.stdout.splitlines() if text.startswith("note: ")]
        assert notes == [f"note: {text}" for text in self.AXES]

    def test_independence_that_checks_nothing(self, attnproof, write, tmp_path):
        write(self.SUMS)
        listed = attnproof("list", "sums", "--operations=ops.py", cwd=tmp_path)
        words = " ".join(listed.stdout.partition("remarks")[2].split())
        why = "no argument has a role of the batch, such as SeqLens"
        assert words == " ".join([*self.AXES, f"sums: independent=True checks nothing: {why}"])

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (("more: Numbers", "more: SeqLens"), "no result has an entry for each row or token: "),
            (("int:", "SeqLens:"), "no argument has a role of the batch"),
            (("Numbers) -> int:", "SeqLens) -> Annotated[torch.Tensor, Array(shape=('R',))]:"), ""),
            (
                (
                    "more: Numbers) -> int:",
                    "more: SeqLens, rows: Annotated[torch.Tensor, Array(shape=('N',), below='R')])"
                    " -> Annotated[torch.Tensor, Array(shape=('R',))]:",
                ),
                "rows does not follow from a part of the rows",
            ),
        ],
    )
    def test_why_independence_checks_nothing(self, write, monkeypatch, change, why):
        monkeypatch.setattr(own_operations, "try_reference", lambda *_: None)
        use_operations([write(self.SUMS.replace(*change))])
        [remark] = unchecked_independence(definition_in_use("sums"), ALL["sums"]) or [""]
        assert remark.startswith(f"sums: independent=True checks nothing: {why}" if why else "")
        assert bool(remark) == bool(why)


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "--candidate", "mine.py"),
        ("bench", "--candidate", "mine.py"),
        ("replay", "case.json"),
        ("list",),
        ("mutants", "--candidate", "mine.py"),
        pytest.param(
            ("campaign", "--candidate", "mine.py"),
            marks=pytest.mark.skipif(find_spec("ray") is None, reason="campaigns need Ray"),
        ),
    ],
)
def test_a_refused_file_ends_the_command_before_anything_runs(
    attnproof, write, tmp_path, arguments
):
    (tmp_path / "mine.py").write_text("open('ran', 'w')", encoding="utf-8")
    done = attnproof(*arguments, "--operations", write("1 / 0"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "attnproof: ops.py:7 cannot be imported: ZeroDivisionError: division by zero"
    ]
    assert done.stdout == ""
    assert {one.name for one in tmp_path.iterdir()} <= {"mine.py", "ops.py", "__pycache__"}


def test_pyproject_toml_names_the_files(attnproof, write, tmp_path):
    write(DOUBLED)
    (tmp_path / "pyproject.toml").write_text('[tool.attnproof]\noperations = ["ops.py"]\n')
    (tmp_path / "mine.py").write_text("def doubled(seq_lens):\n    return seq_lens * 2\n")
    options = ("--ops", "doubled", "--examples=5", "--no-vary", "--steps=0", "--out=out")
    done = attnproof("verify", "--candidate", "mine.py", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in summary["operations"]] == ["doubled"]


@pytest.mark.parametrize(
    ("name", "code", "head"),
    [
        ("numbers", 5, "FAULT OF THE REFERENCE counted [mine]: "),
        ("N", 2, "attnproof: "),  # the sizes of all edge cases are computed before the run
    ],
)
def test_a_function_of_values_that_raises_on_a_later_case(
    attnproof, write, tmp_path, name, code, head
):
    write(
        f"""
@operation(values={{"{name}": lambda values: [1] * (3 // (values.sizes["R"] < 200))}})
def counted(seq_lens: SeqLens, numbers: Numbers) -> int:
    '''Return the number of numbers.'''
    return len(numbers)
""".replace("[1] * ", "" if name == "N" else "[1] * ")
    )
    (tmp_path / "mine.py").write_text("def counted(seq_lens, numbers):\n    return len(numbers)\n")
    options = ("--operations=ops.py", "--examples=5", "--no-vary", "--steps=0", "--out=out")
    done = attnproof("verify", "--candidate", "mine.py", *options, cwd=tmp_path)
    assert done.returncode == code
    problem = f'ops.py:8: values["{name}"] of counted raises ZeroDivisionError: '
    assert head in done.stdout + done.stderr
    assert problem in done.stdout + done.stderr
    listed = attnproof("list", "counted", "--operations=ops.py", cwd=tmp_path)
    assert (problem in listed.stderr) == (listed.returncode == 2) == (name == "N")


_OURS = len(ALL)


@pytest.mark.parametrize(
    ("functions", "line"),
    [
        ("doubled", [f"NOT OFFERED by mine: counted, {_OURS} of {_OURS} operations of attnproof"]),
        ("doubled counted", []),
        (
            "doubled counted get_dcp_lens",
            [f"NOT OFFERED by mine: {_OURS - 1} of {_OURS} operations of attnproof"],
        ),
        ("other", []),
    ],
)
def test_operations_of_ours_are_counted_briefly(attnproof, write, tmp_path, functions, line):
    write(DOUBLED + FOLLOWING % "block_size")
    text = "".join(f"def {name}(*args):\n    return 1\n" for name in functions.split())
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    options = ("--operations=ops.py", "--examples=1", "--no-vary", "--steps=0", "--out=out")
    done = attnproof("verify", "--candidate", "mine.py", *options, "--maxfail=1", cwd=tmp_path)
    assert [text for text in done.stdout.splitlines() if text.startswith("NOT OFFERED")] == line
    nothing = "mine offers none of the operations asked for: define functions such as doubled\n"
    assert (nothing in done.stderr) == (functions == "other")


def test_a_reference_that_fails_on_a_later_case_is_named(attnproof, write, tmp_path):
    body = "assert len(seq_lens) < 200\n    return seq_lens * 2"
    write(DOUBLED.replace("return seq_lens * 2", body))
    (tmp_path / "mine.py").write_text("def doubled(seq_lens):\n    return seq_lens * 2\n")
    options = ("--operations=ops.py", "--examples=5", "--no-vary", "--steps=0", "--out=out")
    done = attnproof("verify", "--candidate", "mine.py", *options, cwd=tmp_path)
    assert done.returncode == 5
    expected = "FAULT OF THE REFERENCE doubled [mine]: the reference failed on case "
    assert expected in done.stdout + done.stderr


def test_own_operations_need_a_candidate(attnproof, write, tmp_path):
    done = attnproof("verify", "--operations", write(DOUBLED), cwd=tmp_path)
    assert done.returncode == 2
    assert "name your candidate with --candidate: --operations" in done.stderr
