"""Mutants of a candidate: which changes are made, and that they run."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from attnproof.harness.backports import tomllib
from attnproof.harness.model.call import Call
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, encode
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import UsageError
from attnproof.harness.strength.mutants import judging, planting, reviewed
from attnproof.harness.strength.mutants.judging import Prepared
from attnproof.harness.strength.mutants.mutant import Mutant, Result
from attnproof.harness.strength.mutants.operators import functions, mutants
from attnproof.harness.strength.mutants.queue import Queue
from attnproof.harness.strength.mutants.reach import Reach
from attnproof.harness.strength.processes import in_processes
from attnproof.harness.verbs import mutant_lanes
from attnproof.harness.verbs import mutants as verb
from attnproof.harness.verbs.options import MutantsOptions

REPOSITORY = Path(__file__).parents[3]


def _mutants(source: str, name: str = "f", ran: set[int] | None = None) -> list[Mutant]:
    return mutants("f.py", name, functions(ast.parse(textwrap.dedent(source)))[name], ran)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("return a < b", ("comparison", "a < b", "a <= b")),
        ("return a == b", ("comparison", "a == b", "a != b")),
        ("return a + b", ("arithmetic", "a + b", "a - b")),
        ("return a // b", ("arithmetic", "a // b", "a * b")),
        ("a += b", ("arithmetic", "a += b", "a -= b")),
        ("return -a", ("sign or negation", "-a", "a")),
        ("return a and b", ("condition", "a and b", "a or b")),
        ("return 1 if a else 2", ("condition", "1 if a else 2", "1 if not a else 2")),
        ("return 7", ("constant", "7", "8")),
        ("return True", ("constant", "True", "False")),
        ("return min(a, b)", ("name", "min", "max")),
        ("return a.to(torch.int64)", ("name", "torch.int64", "torch.int32")),
        ("return a.stride(0)", ("axis", "a.stride(0)", "a.stride(1)")),
        ("return a.sum(dim=0)", ("axis", "a.sum(dim=0)", "a.sum(dim=1)")),
        ("return g(a, mask=b)", ("mask", "g(a, mask=b)", "g(a)")),
        ("return a.clone()", ("call left out", "a.clone()", "a")),
        ("return a[b:c]", ("slice", "b:c", "b + 1:c")),
        ("return a[b:c]", ("slice", "b:c", "b:c - 1")),
        ("a[0] = b", ("statement dropped", "a[0] = b", "")),
        ("a.fill_(b)", ("statement dropped", "a.fill_(b)", "")),
    ],
)
def test_an_operator_changes_one_place(line, change):
    found = _mutants(f"def f(a, b, c):\n    {line}\n")
    assert change in [(one.operator, one.before, one.after) for one in found]
    assert [one.line for one in found] == [2] * len(found)


def test_a_default_is_changed():
    (found,) = _mutants("def f(a=True): return a")
    assert (found.operator, found.before, found.after) == ("default", "True", "False")


@pytest.mark.parametrize(
    "line", ['"""Words 1 + 2."""', "raise ValueError(1 + 2)", "a: list[1]", 'return f"{1 + 2}"']
)
def test_text_annotations_and_errors_have_no_mutants(line):
    assert _mutants(f"def f(a):\n    {line}\n") == []


INNER = """\
    def outer(a):
        def called(b):
            return b + a
        def other(b):
            return b - a
        return called(2)
    """


def test_an_inner_function_that_did_not_run_has_no_mutants():
    every, ran = _mutants(INNER, "outer"), _mutants(INNER, "outer", {2, 3, 4, 6})
    assert {one.before for one in every} == {"b + a", "b - a", "2"}
    assert ran == [one for one in every if one.before != "b - a"]


MODULE = """\
    def made(a):
        def inner(b):
            return b + a
        return inner

    class Table:
        def last(self):
            return [4, 5, 6][-1]

    def with_default(a=3):
        return a

    def nested(a):
        def inner(b):
            return b * 2
        return inner(a)

    def closure(a, b):
        def inner(c):
            a[0] = c
            return b
        return inner

    add_two = made(2)
    kept = closure([0], 2)
    """


@pytest.fixture
def module(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(textwrap.dedent(MODULE))
    spec = importlib.util.spec_from_file_location("module_of_mutants", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_change_of_a_mutant_is_its_lines(tmp_path):
    file = tmp_path / "changed.py"
    file.write_text("def f(a):\n    b = a + 1\n    if b > 1:\n        b += 1\n    return b + 1\n")
    made = mutants(str(file), "f", functions(ast.parse(file.read_text()))["f"])
    changes = {one.operator: planting.changed_lines(one) for one in made}
    assert changes["statement dropped"] == "- b += 1\n+ pass\n"
    assert changes["comparison"] == "- if b > 1:\n+ if b <= 1:\n"
    ones = [planting.changed_lines(one) for one in made if (one.before, one.after) == ("1", "2")]
    assert len(ones) == len(set(ones)) == 4


def _plant(module, function: str, before: str, after: str) -> None:
    tree = functions(ast.parse(Path(module.__file__).read_text()))[function]
    (mutant,) = [
        one
        for one in mutants(module.__file__, function, tree)
        if (one.before, one.after) == (before, after)
    ]
    planting.find_functions(module, [module.__file__])
    planting.plant(mutant)


@pytest.mark.parametrize(
    ("function", "before", "after", "call", "right", "wrong"),
    [
        ("nested", "b * 2", "b // 2", lambda m: m.nested(4), 8, 2),
        ("Table.last", "-1", "1", lambda m: m.Table().last(), 6, 5),
        ("with_default", "3", "4", lambda m: m.with_default(), 3, 4),
        ("made", "b + a", "b - a", lambda m: m.made(1)(2), 3, 1),
        ("made", "b + a", "b - a", lambda m: m.add_two(5), 7, 3),
    ],
)
def test_a_planted_mutant_runs(module, function, before, after, call, right, wrong):
    assert call(module) == right
    _plant(module, function, before, after)
    assert call(module) == wrong


def test_a_change_of_the_closure_of_an_existing_function_is_refused(module):
    with pytest.raises(planting.NotPlantedError, match="closure"):
        _plant(module, "closure", "a[0] = c", "")


def test_lines_below_the_root_are_recorded(module):
    reach = Reach(Path(module.__file__))
    operation = reach.recorded(ALL["get_dcp_lens"])
    operation.call.run(lambda: (module.nested(1), json.dumps({})), Call({}))
    nested = reach.take()
    operation.call.run(module.with_default, Call({}))
    default = reach.take()
    module.nested(1)
    assert reach.take().size == 0, "recorded outside of a call"
    assert reach.by_file(nested) == {module.__file__: {14, 15, 16}}
    assert reach.by_file(default) == {module.__file__: {11}}
    assert reach.has_run(nested, module.__file__, (15, 15))
    assert not reach.has_run(default, module.__file__, (12, 16))
    ((_, name, _),) = planting.called_functions(reach.by_file(nested))
    assert name == "nested"


LINES = """\
    def f(a,
          b=2):
        if (a and
                b):
            a = [1,
                 b + 3]
        return a
    """


def test_a_mutant_has_the_lines_of_its_statement():
    lines = {one.before: one.lines for one in _mutants(LINES)}
    assert lines["a and b"] == (3, 4)
    assert lines["b + 3"] == (5, 6)
    assert lines["2"] == (3, 7)


def test_only_cases_that_run_the_statement_judge_a_mutant(module):
    small, large = (Case("slice_query_start_locs", None, {"n": n}) for n in (1, 2))
    reach = Reach(Path(module.__file__))
    places = {small.id: np.array([14, 15, 16]), large.id: np.array([14, 16])}
    made = Prepared([encode(small), encode(large)], [], places, 0, 0.1, 2)
    queue = Queue(module, Candidate("mine", ""), reach, {"slice_query_start_locs": made})
    planned = {mutant.before: (mutant, names) for mutant, names in queue.planned()}
    assert {"b * 2", "2"} == set(planned)
    ((*_, (judged,)),) = queue.arguments([planned["b * 2"]], 1.0)
    assert judged.cases == [small]


def test_the_case_that_killed_comes_first(module):
    cases = [Case("slice_query_start_locs", None, {"n": n}) for n in range(4)]
    places = {case.id: np.array([14, 15, 16]) for case in cases}
    made = Prepared([encode(case) for case in cases], [], places, 0, 0.1, len(cases))
    queue = Queue(
        module, Candidate("mine", ""), Reach(Path(module.__file__)), {cases[0].operation: made}
    )
    planned = queue.planned()[:1]
    for number in (2, 3, 2):
        killed = _result("killed", operation=cases[0].operation)
        queue.learn(msgspec.structs.replace(killed, case=cases[number].id))
    ((*_, (judged,)),) = queue.arguments(planned, 1.0)
    assert judged.cases == [cases[2], cases[3], cases[0], cases[1]]


def test_arguments_are_taken_when_a_call_can_start():
    taken = []

    def arguments():
        for number in range(4):
            taken.append(number)
            yield (number,)

    calls = in_processes(abs, arguments(), 2)
    first = next(calls)
    assert taken == [0, 1]
    assert sorted([first, *calls]) == [((n,), n) for n in range(4)]


def test_the_source_that_inspect_returns_changes_too(module):
    _plant(module, "nested", "b * 2", "b // 2")
    assert "b // 2" in inspect.getsource(module.nested)
    assert inspect.getsource(module.closure).startswith("def closure")


@pytest.mark.lanes
def test_kernels_are_changed_in_the_interpreter(tmp_path):
    # A process of its own: Triton chooses its interpreter when it is imported.
    line = "-m attnproof mutants --candidate optimized-triton --sample 16 --out results --ops"
    command = [sys.executable, *line.split(), "get_dcp_lens,prepare_pos_seq_lens"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "results" / "mutants.json").read_text())["results"]
    kernels = [one for one in made if "/kernels/" in one["mutant"]["file"]]
    assert "killed" in {one["fate"] for one in kernels}
    assert "not planted" not in {one["fate"] for one in kernels}


def _result(fate: str, index: int = 0, operation: str = "a") -> Result:
    return Result(Mutant("f.py", "f", 1, "constant", index, "1", "2"), operation, fate)


@pytest.mark.parametrize(
    ("results", "score"),
    [
        ([], 1.0),
        ([_result("killed"), _result("survived", 1)], 0.5),
        ([_result("timed out"), _result("equivalent", 1), _result("not planted", 2)], 1.0),
        ([_result("survived"), _result("equivalent", 1)], 0.0),
    ],
)
def test_the_score_is_the_share_of_those_killed(results, score):
    assert verb._score(results) == score


def test_another_lane_judges_survivors(monkeypatch, tmp_path):
    def with_cases(index, fate, count):
        return msgspec.structs.replace(_result(fate, index), cases=count)

    first = [with_cases(0, "killed", 1), with_cases(1, "survived", 9), with_cases(2, "survived", 0)]
    first.append(with_cases(3, "survived", 9))
    asked = []

    def judged(candidate, ids, operations, options):
        asked.append((candidate.name, set(ids), operations))
        return [
            with_cases(1, "killed", 2),
            with_cases(2, "survived", 5),
            with_cases(3, "survived", 7),
        ]

    monkeypatch.setattr(mutant_lanes, "_judged", judged)
    planned = [(one.mutant, ["a"]) for one in first]
    optimized = Candidate("optimized", "")
    made = mutant_lanes.judged_elsewhere(first, planned, optimized, MutantsOptions(out=tmp_path))
    assert [(one.fate, one.cases) for one in made] == [
        ("killed", 1),
        ("killed", 2),
        ("survived", 5),
        ("survived", 9),
    ]
    ids = [one.mutant.id for one in first]
    assert asked == [
        ("optimized-unchecked", {*ids[1:]}, {"a"}),
        ("optimized-triton", {*ids[2:]}, {"a"}),
    ]


def test_an_id_is_the_same_in_another_checkout(tmp_path):
    def id_in(folder):
        return msgspec.structs.replace(_result("survived").mutant, file=f"{folder}/mine.py").id

    assert id_in(tmp_path / "host") == id_in("elsewhere/host") != id_in("device")


def test_ids_of_other_mutants_are_refused(tmp_path):
    planned = [(_result("survived", index).mutant, ["a"]) for index in range(3)]
    queue = SimpleNamespace(planned=lambda: list(planned))
    only = tmp_path / "only.txt"
    options = MutantsOptions(out=tmp_path, only=only)
    only.write_text(planned[1][0].id)
    assert verb._planned(queue, Candidate("mine", ""), options) == [planned[1]]
    only.write_text("0123456789ab")
    with pytest.raises(UsageError, match=r"only\.txt: no id of a mutant of mine"):
        verb._planned(queue, Candidate("mine", ""), options)


def test_a_resumed_run_reads_whole_lines(tmp_path):
    file = tmp_path / "results.jsonl"
    assert verb._read(file) == {}
    killed = _result("killed")
    line = msgspec.json.encode(killed)
    file.write_bytes(line + b"\n" + line[:-5])
    assert verb._read(file) == {killed.key: killed}


CANDIDATE = """\
    def slice_query_start_locs(query_start_loc, request_slice):
        start, stop = request_slice.start or 0, request_slice.stop
        return query_start_loc[start : stop + 1] - query_start_loc[start]
    """


@pytest.mark.slow
def test_a_file_is_judged_and_a_second_run_reuses_the_results(attnproof, tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(CANDIDATE))
    command = ["mutants", "--candidate", "mine.py", "--examples", "30", "--out", "results"]
    first = attnproof(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    made = json.loads((tmp_path / "results" / "mutants.json").read_text())
    assert {one["mutant"]["file"] for one in made["results"]} == {str(tmp_path / "mine.py")}
    assert {one["operation"] for one in made["results"]} == {"slice_query_start_locs"}
    killed = [one for one in made["results"] if one["fate"] == "killed"]
    assert len(killed) >= len(made["results"]) - 1 > 0
    assert "equality" in {one["oracle"] for one in killed}
    again = attnproof(*command, cwd=tmp_path)
    assert f"{len(made['results'])} of them judged by an earlier run" in again.stdout
    assert json.loads((tmp_path / "results" / "mutants.json").read_text())["score"] == made["score"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ops", "no_such"], "no_such"),
        (["--examples", "0"], "--examples 0"),
        (["--sample", "-1"], "--sample -1"),
        (["--budget", "-1"], "--budget -1"),
        (["--candidate", "missing.py"], "missing.py does not exist"),
        (["--candidate", "optimized", "--candidate", "reference"], "one candidate at a time"),
        (["--candidate", "optimized-triton", "--device", "cuda"], "--device"),
    ],
)
def test_a_usage_error_is_one_line_and_writes_nothing(attnproof, tmp_path, options, message):
    done = attnproof("mutants", "--out", "results", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_no_handler_of_exceptions_swallows_the_time_limit(monkeypatch):
    def hang():
        with judging._time_limit(Candidate("mine", "mine")):
            while True:
                with suppress(Exception):
                    while True:
                        pass

    monkeypatch.setattr(judging, "_TIMEOUT_S", 0.01)
    with pytest.raises(judging._TimeIsOver):
        hang()


WITHOUT_EFFECT = CANDIDATE.replace(
    "    return", "    _ = 1 + 2 + 3 + 4 + 5 + 6 + 7\n        return"
)


@pytest.mark.slow
def test_without_time_the_first_cases_of_an_operation_are_judged(attnproof, tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(WITHOUT_EFFECT))
    command = ["mutants", "--candidate", "mine.py", "--examples", "9", "--budget", "0"]
    done = attnproof(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    survived = [line for line in done.stdout.splitlines() if line.startswith("SURVIVED")]
    assert survived
    assert all("20 cases; the time of a mutant is over" in line for line in survived)
    assert "\n    - " in done.stdout
    made = json.loads((tmp_path / "reports/mutants/mutants.json").read_text())["results"]
    assert all(one["change"].startswith("- ") for one in made if one["fate"] == "survived")


def test_a_score_below_the_limit_fails(attnproof, tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(WITHOUT_EFFECT))
    command = ["mutants", "--candidate", "mine.py", "--examples", "9", "--sample", "4"]
    done = attnproof(*command, "--budget", "0", "--fail-under", "100", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr


def test_a_candidate_that_fails_every_case_is_not_judged(attnproof, tmp_path):
    (tmp_path / "mine.py").write_text("def slice_query_start_locs(offsets, part):\n    raise 1\n")
    done = attnproof("mutants", "--candidate", "mine.py", "--examples", "9", cwd=tmp_path)
    assert done.returncode == 2
    assert "fails every valid case: verify it first" in done.stderr
    assert "score" not in done.stdout


def test_reviewed_mutants_are_in_the_source():
    entries = tomllib.loads(reviewed._FILE.read_text()).get("equivalent", [])
    found = set()
    for file in [*REPOSITORY.glob("optimized/**/*.py"), *REPOSITORY.glob("reference/**/*.py")]:
        for name, function in functions(ast.parse(file.read_text())).items():
            for one in mutants(str(file), name, function):
                found.add((one.function, reviewed.line_of(one), one.before, one.after))
    assert set(reviewed._reasons()) <= found
    assert len(reviewed._reasons()) == sum(len(one["changes"]) for one in entries)
    assert all(one["reason"] for one in entries)


def test_files_that_are_not_judged_exist():
    for name in tomllib.loads(reviewed._FILE.read_text())["not_judged"]:
        file, _, owner = name.partition(":")
        assert (REPOSITORY / file).is_file()
        assert not owner or f"class {owner}" in (REPOSITORY / file).read_text()
