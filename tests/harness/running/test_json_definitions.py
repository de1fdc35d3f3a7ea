"""Definitions and solutions of flashinfer-bench: what is found by them, and what is refused."""

from __future__ import annotations

import json
import os

import pytest
import torch

from attnproof import reference
from attnproof.harness.operations import ALL
from attnproof.harness.running import own_operations, own_trial
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.own_operations import VARIABLE, own_names, use_operations

REFERENCE = """\
import math
import torch

def run(q, cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, scale):
    out = torch.zeros_like(q)
    lse = torch.full((len(q),), -math.inf)
    for row in range(len(qo_indptr) - 1):
        first, last = int(qo_indptr[row]), int(qo_indptr[row + 1])
        pages = kv_indices[int(kv_indptr[row]) : int(kv_indptr[row + 1])].long()
        tokens = cache.shape[1] * (len(pages) - 1) + int(kv_last_page_len[row])
        keys = cache[pages].flatten(0, 1)[:tokens].float()
        for place in range(first, last):
            seen = keys[: tokens - (last - place) + 1]
            scores = seen @ q[place].float() * scale
            out[place] = (scores.softmax(0) @ seen).to(q.dtype)
            lse[place] = scores.logsumexp(0)
    return out, lse
"""
RIGHT = """\
import torch

def attend(q, cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, scale):
    out, lse = torch.zeros_like(q), torch.zeros(len(q))
    lengths = (kv_indptr.diff() - 1) * cache.shape[1] + kv_last_page_len
    keys = cache[kv_indices.long()].flatten(0, 1).float()
    for row, length in enumerate(lengths.tolist()):
        part = slice(int(qo_indptr[row]), int(qo_indptr[row + 1]))
        if part.start == part.stop:
            continue
        first = int(kv_indptr[row]) * cache.shape[1]
        own, queries = keys[first : first + length], q[part].float()
        scores = queries @ own.T * scale
        future = torch.ones_like(scores).triu(length - len(queries) + 1).bool()
        weights = scores.masked_fill(future, -torch.inf)
        top = weights.amax(1, keepdim=True)
        total = (weights - top).exp().sum(1)
        out[part] = ((weights - top).exp() @ own / total[:, None]).to(q.dtype)
        lse[part] = top[:, 0] + total.log()
    return out, lse
"""
CONST, VAR = "const", "var"


def axis(value: int | None = None) -> dict[str, object]:
    return {"type": VAR} if value is None else {"type": CONST, "value": value}


def tensor(*shape: str, dtype: str = "bfloat16") -> dict[str, object]:
    return {"shape": list(shape), "dtype": dtype}


ATTEND = {
    "name": "attend",
    "op_type": "paged",
    "description": "Attend to pages. With a causal mask.",
    "axes": {
        **dict.fromkeys(("total_q", "num_pages", "num_kv_indices", "len_indptr", "rows"), axis()),
        "page_size": axis(4),
        "dim": axis(8),
    },
    "constraints": [
        "total_q == qo_indptr[-1].item()",
        "kv_indptr[-1].item() == num_kv_indices",
        "len_indptr == rows + 1",
    ],
    "inputs": {
        "q": tensor("total_q", "dim"),
        "cache": tensor("num_pages", "page_size", "dim"),
        "qo_indptr": tensor("len_indptr", dtype="int32"),
        "kv_indptr": tensor("len_indptr", dtype="int32"),
        "kv_indices": tensor("num_kv_indices", dtype="int32"),
        "kv_last_page_len": tensor("rows", dtype="int32"),
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"out": tensor("total_q", "dim"), "lse": tensor("total_q", dtype="float32")},
    "reference": REFERENCE,
}
SCALED = {
    "name": "scaled",
    "axes": {"n": axis()},
    "inputs": {"x": tensor("n", dtype="float32"), "factor": {"shape": None, "dtype": "int32"}},
    "outputs": {"y": tensor("n", dtype="float32")},
    "reference": "def run(x, factor):\n    return x / (1 // factor if factor < 2 else factor)\n",
}


def changed(definition: dict, path: str, value: object) -> dict:
    """Return a copy with one value replaced, deleted if it is None."""
    copy = json.loads(json.dumps(definition))
    *parents, last = path.split(".")
    table = copy
    for key in parents:
        table = table[key]
    table[last] = value
    return copy


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a definition as JSON; what it registers is removed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(own_operations, "_registered", {})

    def run(definition: object) -> str:
        text = definition if isinstance(definition, str) else json.dumps(definition)
        (tmp_path / "defined.json").write_text(text, encoding="utf-8")
        return "defined.json"

    yield run
    for name in own_names():
        del ALL[name]
        delattr(reference, name)


def test_cases_keep_to_roles_and_constraints(write):
    use_operations([write(ATTEND)])
    operation = ALL["attend"]
    assert operation.summary == "Attend to pages"
    cases = [case for _, case in operation.inputs.boundaries()]
    assert len(cases) > 40
    totals = set()
    for case in cases:
        call = operation.call.prepare(case, 0, "cpu").args
        q, cache, queries, keys, pages, last, scale = call.values()
        assert queries[0] == keys[0] == 0
        assert (keys.diff() >= queries.diff()).all()
        assert (queries.diff() >= 0).all()
        assert (int(queries[-1]), int(keys[-1])) == (len(q), len(pages))
        assert ((pages >= 0) & (pages < len(cache))).all()
        assert ((last >= 1) & (last <= 4)).all()
        assert len(queries) == len(keys) == len(last) + 1
        assert (q.dtype, cache.shape[1:], type(scale)) == (torch.bfloat16, (4, 8), float)
        totals.add(len(q))
    assert 0 in totals
    assert max(totals) > 128


@pytest.mark.slow
@pytest.mark.parametrize(
    ("good", "bad", "field"),
    [
        ("", "", ""),
        ("/ total[:, None]", "/ total[:, None].roll(1, 0)", "out"),
        (" + total.log()", "", "lse"),
        (
            "(kv_indptr.diff() - 1) * cache.shape[1] + kv_last_page_len",
            "kv_indptr.diff() * 4",
            "lse",
        ),
        ("int(kv_indptr[row]) * ", "max(0, int(kv_indptr[row]) - 1) * ", "out"),
        ("len(queries) + 1)", "len(queries))", "lse"),
    ],
    ids=["right", "denominator", "logarithm", "last page", "offsets", "causal mask"],
)
def test_a_right_candidate_passes_and_wrong_ones_are_found(
    attnproof, write, tmp_path, good, bad, field
):
    assert RIGHT.count(good) == 1 or not good
    (tmp_path / "mine.py").write_text(RIGHT.replace(good, bad) if good else RIGHT)
    options = ("--depth=quick", "--no-vary", "--steps=2", "--jobs=1", "--out=out", "--seed=1")
    arguments = ("--candidate", "mine.py", "--definition", write(ATTEND))
    done = attnproof("verify", *arguments, *options, cwd=tmp_path)
    assert done.returncode == (1 if field else 0), done.stdout + done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    verdicts = [one["verdict"] for one in summary["operations"] if one["name"] == "attend"]
    assert verdicts == ["FAIL" if field else "PASS"]
    assert not field or field in {one["field"].split("[")[0] for one in summary["findings"]}
    for path in [one["case_path"] for one in summary["findings"]][:1]:
        again = attnproof("replay", f"out/{path}", *arguments, cwd=tmp_path)
        assert again.returncode == 1, again.stdout + again.stderr


def solution(**changes: object) -> dict:
    spec = {"language": "python", "entry_point": "main.py::run", "target_hardware": ["cpu"]}
    content = RIGHT.replace("def attend", "def run").replace(" scale):", " scale, out, lse):")
    content = content.replace("out, lse = torch.zeros_like(q), torch.zeros(len(q))", "pass")
    files = {"main.py": "from parts.kernel import run\n", "parts/kernel.py": content}
    sources = [{"path": path, "content": text} for path, text in files.items()]
    return {"definition": "attend", "spec": spec | changes, "sources": sources}


def test_a_solution_is_a_candidate(attnproof, write, tmp_path):
    (tmp_path / "solved.json").write_text(json.dumps(solution()))
    options = ("--examples=10", "--no-vary", "--steps=0", "--jobs=1")
    arguments = ("--candidate", "solved.json", "--definition", write(ATTEND))
    done = attnproof("verify", *arguments, *options, cwd=tmp_path)
    assert "PASS        attend [solved]" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(solution(language="cuda")), "`$.spec.language`"),
        (json.dumps(solution(entry_point="a.py::run")), "spec.entry_point: no source is 'a.py'"),
        (json.dumps(solution() | {"definition": "b"}), "definition: 'b' is no operation: name its"),
        ("{", "is no Solution in Python or Triton: Input data was truncated"),
    ],
)
def test_a_refused_solution(attnproof, write, tmp_path, text, message):
    (tmp_path / "solved.json").write_text(text)
    arguments = ("--candidate", "solved.json", "--definition", write(ATTEND))
    done = attnproof("verify", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("attnproof: candidate file solved.json")
    assert message in line


def test_cases_that_the_reference_refuses_are_dropped(write):
    use_operations([write(SCALED)])
    factors = {case.params["factor"] for _, case in ALL["scaled"].inputs.boundaries()}
    assert 0 not in factors
    assert {1, 2} < factors


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("axes.n.type", "free", "axes.n: Invalid value 'free' - at `$.type`"),
        ("axes.n", {"type": CONST}, "axes.n: Object missing required field `value`"),
        ("inputs.x.dtype", "float9", "inputs.x.dtype: 'float9' is none of bfloat16, float16, "),
        ("inputs.x.shape", ["m"], "inputs.x.shape: 'm' is no axis: axes has n"),
        ("inputs.x.shape", 3, "inputs.x: Expected `array | null`, got `int` - at `$.shape`"),
        ("inputs.x y", tensor("n"), "inputs.x y: is no name of a variable"),
        ("outputs", {}, "outputs: is empty"),
        ("outputs.y.shape", None, "outputs.y.shape: a scalar of floats is not supported"),
        ("constraints", ["n =="], "constraints[0]: 'n ==' is no expression: invalid syntax"),
        ("constraints", ["n > k"], "constraints[0]: k is no axis and no input"),
        ("reference", "def run(x, factor:", "reference: cannot be executed: SyntaxError: "),
        ("reference", "1 / 0", "reference: cannot be executed: ZeroDivisionError: "),
        ("reference", "def go(): pass", "reference: has no function run"),
        ("name", "build_slot_mapping", "the name build_slot_mapping is taken by an operation or "),
        ("name", "a b", "'a b' is no name of a function"),
    ],
)
def test_a_refused_file(write, path, value, message):
    with pytest.raises(UsageError) as caught:
        use_operations([write(changed(SCALED, path, value))])
    assert str(caught.value).startswith(f"defined.json: {message}")
    assert "\n" not in str(caught.value)
    assert own_names() == set()
    assert os.environ[VARIABLE] == ""


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("{", "defined.json: Input data was truncated"),
        (
            changed(ATTEND, "constraints", ["rows > 300"]),
            "defined.json: the reference of attend has conditions that no usual arguments meet: "
            "attend: ",
        ),
        (
            changed(ATTEND, "reference", "def run(*_):\n    1 / 0\n"),
            "defined.json: the reference of attend raises ZeroDivisionError: division by zero, "
            "on the case 'usual arguments'",
        ),
        (
            changed(
                ATTEND, "reference", "def run(q, *_):\n    return q.float(), q[:, 0].float()\n"
            ),
            "defined.json: the reference of attend returns what it does not declare: defined.json: "
            "attend: out is float32, declared is bfloat16",
        ),
        (
            changed(ATTEND, "reference", "def run(*_):\n    while True: pass\n"),
            "defined.json: the reference of attend does not return within 0.5 s",
        ),
    ],
    ids=["no JSON", "constraint", "raises", "result", "hangs"],
)
def test_a_refused_reference(write, monkeypatch, definition, message):
    monkeypatch.setattr(own_trial, "TRIAL_S", 0.5 if "while True" in str(definition) else 10)
    with pytest.raises(UsageError) as caught:
        use_operations([write(definition)])
    assert str(caught.value).startswith(message)
