"""`attnproof init`: the file can be imported, and is refused until its body is written."""

from __future__ import annotations

import ast
import re

import pytest

from attnproof import define
from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.options import InitOptions
from attnproof.harness.verbs.scaffold import scaffold, write_scaffold
from attnproof.harness.verbs.usual_names import ROLES

USUAL = '''
import torch

def row_slots(query_start_loc, seq_lens: torch.Tensor, seq_lens_cpu, block_table, block_size: int,
              num_tokens, weights, mask=None, *, window=-1, causal: bool = True, out=None):
    """Return slots.

    More.
    """
'''


def parsed(text: str) -> ast.FunctionDef:
    (function,) = [one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)]
    return function


def declared(text: str) -> dict[str, str]:
    """Return the annotations that a function's scaffold has."""
    function = parsed(scaffold(parsed(text), "mine.py"))
    arguments = function.args.args + function.args.kwonlyargs
    return {one.arg: ast.unparse(one.annotation) for one in arguments} | {
        "return": ast.unparse(function.returns)
    }


def test_usual_names_get_the_alias_of_their_role():
    found = declared(USUAL)
    assert found["query_start_loc"] == "Offsets"
    assert found["seq_lens"] == "SeqLens"
    assert found["seq_lens_cpu"].endswith("Array('sequence lengths', on_cpu=True)]")
    assert found["block_table"] == "BlockTable"
    assert found["block_size"] == "BlockSize"
    assert found["num_tokens"] == "NumTokens"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kv_lens", "SeqLens"),
        ("cache_seqlens", "SeqLens"),
        ("req_to_token", "SlotPool"),
        ("req_pool_indices", "PoolRows"),
        ("extend_start_loc", "TokenStarts"),
        ("qo_indptr", "Offsets"),
        ("page_table: torch.Tensor", "BlockTable"),
        ("out_cache_loc", "Slots"),
        ("tokens_per_block", "BlockSize"),
        ("kv_indptr", "Annotated[torch.Tensor, Array(shape=('R+1',), least=0)]"),
        ("kv_last_page_len", "Annotated[torch.Tensor, Array(shape=('R',), least=0)]"),
    ],
)
def test_names_of_other_engines(name, hint):
    (found, _) = declared(f"def f({name}): ...").values()
    assert found == hint


def test_each_role_is_that_of_an_alias():
    assert all(hasattr(define, alias) for alias in ROLES)
    names = [name for usual in ROLES.values() for name in usual]
    assert len({*names}) == len(names)


def test_other_names_get_what_their_annotation_or_default_says():
    found = declared(USUAL)
    assert found["weights"] == "Annotated[torch.Tensor, Array(shape=('N',), least=0)]"
    assert found["mask"] == "Annotated[torch.Tensor, Array('flags', ('N2',))] | None"
    assert found["window"] == "Annotated[int, Int(least=-1)]"
    assert found["causal"] == "bool"
    assert "written=True" in found["out"]
    assert found["return"] == "None"


@pytest.mark.parametrize(
    ("parameter", "hint"),
    [
        ("num_blocks", "int"),
        ("n", "int"),
        ("num_draft_tokens", "Annotated[torch.Tensor, Array(shape=('R',), least=0)]"),
        ("prompt_lens", "Annotated[torch.Tensor, Array(shape=('R',), least=0)]"),
        ("num_rejected_tokens: int", "int"),
        ("num_accepted_tokens=0", "int"),
        ("num_blocks: torch.Tensor", "Annotated[torch.Tensor, Array(shape=('N',), least=0)]"),
        ("num_reqs: torch.Tensor", "Annotated[torch.Tensor, Array(shape=('N',), least=0)]"),
        ("seq_lens=1", "int"),
    ],
)
def test_numbers_and_arrays_of_numbers(parameter, hint):
    (found, _) = declared(f"def f({parameter}): ...").values()
    assert found == hint


def test_a_default_is_left_out_before_a_parameter_without_one():
    text = scaffold(parsed("def f(x, causal=True, scale=1.0, *, most=3): ..."), "mine.py")
    assert [ast.unparse(one) for one in parsed(text).args.defaults] == []
    assert [ast.unparse(one) for one in parsed(text).args.kw_defaults] == ["3"]


def test_a_second_name_of_a_role_is_of_numbers():
    found = declared("def f(query_start_loc, cu_seqlens_q): ...")
    assert found["query_start_loc"] == "Offsets"
    assert found["cu_seqlens_q"].startswith("Annotated[torch.Tensor, Array(shape=")


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        ("int", "int"),
        ("tuple[torch.Tensor, int]", "tuple[Annotated[torch.Tensor, Array(shape=('?',))], int]"),
        ("torch.Tensor", "Annotated[torch.Tensor, Array(shape=('?',))]"),
    ],
)
def test_results(annotation, result):
    assert declared(f"def f(a) -> {annotation}: ...")["return"] == result


def test_the_written_file_is_refused_in_one_line_until_its_body_is_written(attnproof, tmp_path):
    (tmp_path / "mine.py").write_text(USUAL, encoding="utf-8")
    command = ("init", "my_ops.py", "--from", "mine.py:row_slots")
    done = attnproof(*command, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "attnproof verify --candidate mine.py --operations my_ops.py" in done.stdout
    listed = attnproof("list", "row_slots", "--operations", "my_ops.py", cwd=tmp_path)
    assert listed.returncode == 2
    assert re.fullmatch(
        r"attnproof: my_ops.py:\d+: the reference of row_slots is not written yet: its body "
        r"raises NotImplementedError\n",
        listed.stderr,
    )

    path = tmp_path / "my_ops.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("raise NotImplementedError", "return None"), encoding="utf-8")
    listed = attnproof("list", "row_slots", "--operations", "my_ops.py", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "Return slots" in listed.stdout

    again = attnproof(*command, cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr == "attnproof: my_ops.py exists and is kept: name another file\n"


@pytest.mark.parametrize(
    ("source", "text", "problem"),
    [
        ("mine.py", "", "--from mine.py: write file.py:function"),
        ("none.py:f", "", "none.py: No such file or directory"),
        (
            "mine.py:f",
            "def g(): ...\ndef _h(): ...",
            "mine.py has no function or class f; it has g",
        ),
        ("mine.py:A", "class A:\n    def _x(self): ...", "mine.py:1: A has no public method"),
        ("mine.py:f", "def f(:", "mine.py:1 cannot be parsed: "),
        ("mine.py:f", "def f(*rest): ...", "mine.py:1: *rest declares no arguments: name each"),
        (
            "mine.py:build_slot_mapping",
            "def build_slot_mapping(): ...",
            "build_slot_mapping is an operation of attnproof already: attnproof verify --candidate "
            "mine.py --ops build_slot_mapping",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, monkeypatch, source, text, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    out = tmp_path / "my_ops.py"
    with pytest.raises(UsageError) as caught:
        write_scaffold(InitOptions(path=out, source=source))
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_the_function_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("1 / 0\ndef f(seq_lens): ...", encoding="utf-8")
    write_scaffold(InitOptions(path=tmp_path / "my_ops.py", source="mine.py:f"))
    assert (tmp_path / "my_ops.py").exists()


def test_a_class_has_its_instantiation_and_its_public_methods():
    source = """
class Buffer:
    "Keep rows."
    def __init__(self, size, capacity=8, block_size=16, dtype=torch.int32, *, device): ...
    def commit(self, block_table, *, num_rows): ...
    def _private(self, anything, *rest): ...
    def reset(self): ...
"""
    (target,) = ast.parse(source).body
    text = scaffold(target, "mine.py")
    (written,) = [one for one in ast.parse(text).body if isinstance(one, ast.ClassDef)]
    methods = {one.name: one for one in written.body if isinstance(one, ast.FunctionDef)}
    assert list(methods) == ["__init__", "commit", "reset"]
    assert ast.get_docstring(written) == "Keep rows."
    assert ast.unparse(methods["__init__"].args) == (
        "self, size: int, capacity: int=8, block_size: BlockSize=16"
    )
    assert ast.unparse(methods["commit"].args) == "self, block_table: BlockTable, *, num_rows: int"
    assert ast.unparse(methods["__init__"].returns) == "None"
    assert "Left out, as no case has a value: dtype, device." in text
    assert 'raise MetadataError("commit", "block_table", block_table, ' in text
    names = "Array, BlockSize, BlockTable, Int, MetadataError, operation"
    assert f"from attnproof.define import {names}\n" in text
