"""Definitions of operations: what a signature must say, and what each call then checks."""

import re
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from attnproof.define import (
    Array,
    BlockSize,
    BlockTable,
    ComputedLens,
    DefinitionError,
    Flag,
    Int,
    NumReqs,
    NumTokens,
    Offsets,
    Positions,
    QueryLens,
    RequestIndices,
    SeqLens,
    Slots,
    operation,
)
from attnproof.reference.definition.definition import definition_of
from attnproof.reference.definition.roles import Object, Size, size_of
from attnproof.reference.interface import MetadataError

Tensor = torch.Tensor
Numbers = Annotated[Tensor, Array(shape=("N",))]


def defined(function, **options):
    """Return the definition of a function with a docstring."""
    function.__doc__ = function.__doc__ or "Compute something."
    return definition_of(operation(**options)(function))


def refused(function, **options):
    """Return the message of the refused definition, without its place."""
    with pytest.raises(DefinitionError) as caught:
        defined(function, **options)
    place, text = str(caught.value).split(": ", 1)
    assert place.startswith(f"{__file__}:")
    assert "\n" not in text
    return text


def test_the_definition_of_a_function():
    def both(
        offsets: Offsets, flags: Annotated[Tensor, Array("flags", ("R",))] | None, *, most: int = 3
    ) -> tuple[Slots, NumReqs]:
        """Return two things.

        And more.
        """

    found = defined(both, name="other", results=("slots", "rows"), independent=True)
    assert (found.name, found.summary, found.independent) == ("other", "Return two things", True)
    offsets, flags, most = found.arguments
    assert (offsets.declared, offsets.optional) == (Array("query offsets"), False)
    assert (flags.optional, flags.keyword_only) == (True, False)
    assert (most.declared, most.keyword_only, most.default) == (Int(), True, 3)
    assert [one.name for one in found.results] == ["slots", "rows"]
    assert found.has_batch
    assert found.has_results


def test_the_definition_of_a_class():
    @operation(state=("kept",))
    class Buffer:
        """Keep numbers."""

        def __init__(self, capacity: int) -> None:
            self.kept = capacity

        def add(self, numbers: Numbers) -> None:
            self.kept += len(numbers)

        def _hidden(self, anything):
            pass

    found = definition_of(Buffer)
    assert [one.name for one in found.arguments] == ["capacity"]
    assert [one.name for one in found.methods] == ["add"]
    assert (found.state, found.has_batch, found.has_results) == (("kept",), False, True)
    with pytest.raises(TypeError, match="add: numbers is list, expected torch"):
        Buffer(1).add([1])


@pytest.mark.parametrize(
    ("text", "size"),
    [(3, ("", 0, 3)), ("R", ("R", 1, 0)), ("R+1", ("R", 1, 1)), ("2*N+3", ("N", 2, 3))],
)
def test_sizes(text, size):
    assert size_of(text) == Size(*size)
    assert size_of(text).value({"R": 5, "N": 5}) == size[1] * 5 + size[2]


@pytest.mark.parametrize("text", ["-", "R-1", "R + 1", "N*2", "", "3"])
def test_a_text_that_is_no_size(text):
    with pytest.raises(ValueError, match="is no size: write 3, 'N', 'N\\+1' or '2\\*N'"):
        size_of(text)


class TestRefusedDefinitions:
    def test_an_unknown_axis_of_a_result(self):
        def f(a: Numbers) -> Annotated[Tensor, Array(shape=("M",))]: ...

        assert refused(f).startswith("f: result: nothing determines the size M: ")

    def test_an_unknown_axis_of_a_limit(self):
        def f(a: Annotated[Tensor, Array(shape=("N",), below="M")]) -> Numbers: ...

        assert refused(f).startswith("f: a: nothing determines the size M: ")

    def test_an_axis_of_a_batch_that_there_is_not(self):
        def f(n: int) -> Annotated[Tensor, Array(shape=("R",))]: ...

        assert refused(f).startswith("f: result: nothing determines the size R: ")

    def test_a_size_by_values_of_an_argument(self):
        def f(a: Annotated[Tensor, Array(shape=("?",))]) -> Numbers: ...

        assert refused(f).startswith("f: a: nothing determines the size ?: ")

    def test_an_axis_that_only_a_longer_array_says(self):
        def f(out: Annotated[Tensor, Array(shape=("M",), written=True, longer=True)]) -> None: ...

        assert refused(f) == (
            "f: out: nothing determines the size M: out may be longer; name it in the shape of "
            "another argument or in values, or declare Int('axis', axis='M')"
        )

        def filled(out: Annotated[Tensor, Array(shape=("M",), written=True, longer=True)]) -> None:
            """Write nothing."""

        assert operation(values={"M": lambda _: 3})(filled)

    def test_a_limit_of_a_method_that_is_an_argument_of_the_instantiation(self):
        class Blocks:
            """Keep blocks."""

            def __init__(self, count: int) -> None: ...

            def free(self, ids: Annotated[Tensor, Array(shape=("N",), below="count")]) -> None: ...

        assert refused(Blocks) == (
            "Blocks.free: ids: count is an argument of __init__: limits and shapes of a method "
            "name its own arguments, and it refuses other values with MetadataError"
        )

    @pytest.mark.parametrize(
        ("near", "declared", "axis"),
        [
            ("R", Array("sequence lengths"), "r"),
            ("C", Array("slot pool"), "c"),
            ("N", Array(shape=("N",)), "n"),
        ],
    )
    def test_axes_that_differ_in_case_only(self, near, declared, axis):
        def f(
            a: Annotated[Tensor, declared], b: Annotated[Tensor, Array(shape=(axis,))]
        ) -> Numbers: ...

        message = f"f: {axis} is another axis than {near}: did you mean {near}?"
        assert refused(f) == message

    def test_an_integer_with_the_name_of_an_axis_in_small_letters(self):
        def f(n: Annotated[int, Int("axis", axis="N")], a: Numbers, c: int) -> Numbers: ...

        assert defined(f)

    @pytest.mark.parametrize(
        ("declared", "problem"),
        [
            (Array(shape=(2,), least=4, below=4), "no value is at least 4 and below 4"),
            (Array("sequence lengths", below=0), "no value is at least 0 and below 0"),
            (Array(shape=("N",), least="N+1", below="N"), "no value is at least N+1 and below N"),
            (Int(below=-1), "no value is at least 0 and below -1"),
            (Int(below="N-1"), "'N-1' is no size: write 3, 'N', 'N+1' or '2*N'"),
        ],
    )
    def test_limits_that_no_value_keeps(self, declared, problem):
        def f(a: Annotated[Any, declared]) -> int: ...

        assert refused(f) == f"f: a: {problem}"

    def test_memory_of_what_is_no_argument(self):
        def f(
            out: Annotated[Tensor, Array(shape=("N",), written=True, may_be="b")], a: Numbers
        ) -> None: ...

        assert refused(f) == "f: out: may_be names b, which is no argument"

    def test_a_role_that_there_is_not(self):
        def f(a: Annotated[Tensor, Array("query_offsets")]) -> Numbers: ...

        assert refused(f).startswith("f: a: 'query_offsets' is no role: query offsets, ")

        def g(a: Annotated[int, Int("num_reqs")]) -> int: ...

        assert refused(g).startswith("g: a: 'num_reqs' is no meaning of an integer: requests, ")

    def test_a_result_with_the_name_of_another_one(self):
        def f(a: Numbers) -> tuple[Numbers, Numbers]: ...

        assert refused(f, results=("a", "a")) == "f: two results have one name: a, a"

        def g(result: Annotated[Tensor, Array(shape=("N",), written=True)], a: Numbers) -> int: ...

        assert refused(g).startswith("g: result is an argument that is written: ")

    def test_a_text_that_is_no_size(self):
        def f(a: Annotated[Tensor, Array(shape=("n-",))]) -> Numbers: ...

        assert refused(f) == "f: a: 'n-' is no size: write 3, 'N', 'N+1' or '2*N'"

    def test_two_arguments_that_say_one_axis(self):
        def f(
            n: Annotated[int, Int("axis", axis="N")], m: Annotated[int, Int("axis", axis="N")]
        ) -> Numbers: ...

        assert refused(f) == (
            "f: axis N is the value of both n and m: give one of them another axis"
        )

    def test_two_arguments_of_one_role(self):
        def f(a: SeqLens, b: SeqLens) -> Numbers: ...

        assert refused(f) == (
            "f: a and b are both the sequence lengths of the batch: declare one of them as "
            "numbers, or on_cpu as a mirror of the other"
        )

    def test_arguments_without_a_name(self):
        def f(*rest: int) -> Numbers: ...

        def g(**rest: int) -> Numbers: ...

        for function in (f, g):
            assert "rest declares no arguments: name each one" in refused(function)

    def test_no_docstring(self):
        def f(a: Numbers) -> Numbers: ...

        with pytest.raises(DefinitionError, match="f has no docstring: say what it computes"):
            operation(f)

    @pytest.mark.parametrize("hint", [Tensor, list[int], str])
    def test_no_declaration(self, hint):
        def f(a) -> Numbers: ...

        f.__annotations__["a"] = hint
        assert refused(f) == (
            "f: a has no declaration: write an alias such as SeqLens, or "
            "Annotated[torch.Tensor, Array(...)], int or bool"
        )

    def test_no_declaration_of_the_result(self):
        def f(a: Numbers): ...

        def g(a: Numbers) -> Tensor: ...

        for function, name in ((f, "f"), (g, "g")):
            assert refused(function) == (
                f"{name}: result has no declaration: annotate what is returned, None for nothing"
            )

    def test_an_annotation_that_is_not_imported(self):
        def f(a: "Missing") -> Numbers: ...  # noqa: F821

        assert refused(f) == ("f: its annotations cannot be read: name 'Missing' is not defined")

    def test_a_tolerance_for_integers(self):
        def f(a: Numbers) -> Annotated[Tensor, Array(shape=("N",), tolerance=0.1)]: ...

        assert refused(f) == "f: result: a tolerance is for data; integers are compared exactly"

    @pytest.mark.parametrize(
        ("default", "problem"), [(-1, "below its least value 0"), (9, "not below 9")]
    )
    def test_a_default_outside_the_limits(self, default, problem):
        def f(a: Annotated[int, Int(below=9)] = default) -> int: ...

        assert refused(f) == (
            f"f: a has the default {default}, which is {problem}: declare "
            "Annotated[int, Int(least=..., below=...)]"
        )

    def test_a_dtype_of_another_kind(self):
        def f(a: Annotated[Tensor, Array(shape=("N",), dtype=torch.float32)]) -> Numbers: ...

        assert refused(f) == (
            "f: a: an array of numbers is not of torch.float32: it may be uint8, int8, int16, "
            "int32, int64"
        )

    def test_names_of_other_results(self):
        def f(a: Numbers) -> tuple[int, int]: ...

        assert refused(f, results=("a",)) == "f: 1 names of results, 2 are returned"

    def test_the_dtype_of_an_array_that_there_is_not(self):
        def f(a: Numbers, b: Annotated[Tensor, Array(shape=("N",), dtype_of="c")]) -> Numbers: ...

        assert refused(f) == "f: b: c is no array before it: dtype_of is the name of one"

    def test_a_condition_on_other_arguments(self):
        def condition(b):
            yield "b", b < 0, "at least 0"

        def f(a: Numbers) -> Numbers: ...

        assert refused(f, requires=(condition,)) == (
            "f: the condition condition reads b, which is no argument: the arguments are a"
        )

    def test_a_class_without_a_step(self):
        class Empty:
            """Do nothing."""

            def _hidden(self): ...

        assert refused(Empty) == "class Empty has no public method, which would be a step"

    @pytest.mark.parametrize("option", [{"independent": True}, {"results": ("a",)}])
    def test_an_option_of_functions_for_a_class(self, option):
        class Buffer:
            """Keep numbers."""

            def f(self) -> int: ...

        assert refused(Buffer, **option) == (
            "class Buffer: results and independent are for functions"
        )

    def test_a_condition_that_no_method_has_the_arguments_of(self):
        def condition(a, b):
            yield "a", a < b, "at least b"

        class Two:
            """Do two things."""

            def f(self, a: int) -> int: ...

            def g(self, b: int) -> int: ...

        assert refused(Two, requires=(condition,)) == (
            "Two: the condition condition reads a, b, which no call has together: the arguments "
            "are a, b"
        )

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"values": {"b": max}}, "values has b, which is no argument or axis: those are N, a"),
            ({"choices": {"a": (1, 2)}}, "a of choices is an argument"),
            ({"choices": {"b": ()}}, "b of choices has no value"),
        ],
    )
    def test_values_of_what_no_call_has(self, options, problem):
        def total(a: Annotated[Tensor, Array(shape=("N",))]) -> int:
            """Return the total."""

        assert refused(total, **options) == f"total: {problem}"


def of_batch(
    offsets: Offsets,
    lengths: SeqLens,
    table: BlockTable,
    block_size: BlockSize,
    tokens: NumTokens,
    numbers: Annotated[Tensor, Array(shape=("2*N",), least=0, below="N", distinct=True)],
    out: Annotated[Tensor, Array("slots", written=True, longer=True)],
    few: Annotated[int, Int(least=1, below=9)],
    flag: bool = False,
    mirror: Annotated[Tensor, Array("sequence lengths", on_cpu=True)] | None = None,
    entries: Annotated[dict[str, int] | np.ndarray, Object()] | None = None,
) -> None:
    """Fill the slots."""


def condition(lengths, few):
    """Require lengths below a number."""
    yield "lengths", lengths >= 8, "below 8"
    yield "few", few == 7, "any number but 7"


GOOD = {
    "offsets": torch.tensor([0, 2, 3]),
    "lengths": torch.tensor([5, 1]),
    "table": torch.tensor([[3, 4], [5, -9]]),
    "block_size": 4,
    "tokens": 3,
    "numbers": torch.tensor([], dtype=torch.int32),
    "out": torch.zeros(4, dtype=torch.int64),
    "few": 3,
}


class TestChecksOfACall:
    checked = staticmethod(operation(requires=(condition,))(of_batch))

    def test_good_arguments_by_position_or_name(self):
        assert self.checked(**GOOD) is None
        assert self.checked(*GOOD.values(), True, mirror=torch.tensor([5, 1])) is None

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("offsets", [0, 2, 3], "offsets is list, expected torch.Tensor"),
            ("few", True, "few is bool, expected int"),
            ("few", None, "few is NoneType, expected int$"),
            ("mirror", [5, 1], "mirror is list, expected torch.Tensor or None$"),
            ("entries", [], "entries is list, expected dict or numpy.ndarray or None$"),
            ("flag", 1, "flag is int, expected bool"),
        ],
    )
    def test_another_type(self, name, value, message):
        with pytest.raises(TypeError, match=message):
            self.checked(**GOOD | {name: value})

    @pytest.mark.parametrize(
        ("field", "value", "expected"),
        [
            ("offsets", torch.tensor([[0, 2, 3]]), "1-D"),
            ("offsets", torch.tensor([0.0, 2, 3]), "int32 or int64"),
            ("offsets", torch.tensor([1, 2, 3]), "0"),
            ("offsets", torch.tensor([0, 4, 3]), "non-decreasing"),
            ("offsets", torch.tensor([], dtype=torch.int32), "at least 1"),
            ("lengths", torch.tensor([5, 1, 1]), "length 2"),
            ("lengths", torch.tensor([5, 0]), "at least the query length"),
            ("lengths", torch.tensor([5, -1]), "at least 0"),
            ("lengths", torch.tensor([8, 1]), "below 8"),
            ("table", torch.tensor([[3], [5]]), "at least 2"),
            ("table", torch.tensor([[3, -1], [5, 0]]), "block ids of at least 0"),
            ("block_size", 0, "at least 1"),
            ("tokens", 4, "3, the query tokens"),
            ("numbers", torch.tensor([0]), "length"),
            ("numbers", torch.tensor([0, 1]), "below 1"),
            ("numbers", torch.tensor([0, 0, 1, 1]), "each value once"),
            ("out", torch.zeros(2, dtype=torch.int64), "at least 3"),
            ("out", torch.zeros(3, dtype=torch.int32), "int64"),
            ("few", 0, "at least 1"),
            ("few", 9, "below 9"),
            ("few", 7, "any number but 7"),
            ("mirror", torch.tensor([5, 1, 1]), "length 2"),
        ],
    )
    def test_malformed_arguments(self, field, value, expected):
        with pytest.raises(MetadataError) as caught:
            self.checked(**GOOD | {field: value})
        assert caught.value.field.partition("[")[0] == field
        assert expected in str(caught.value)

    def test_a_written_array_in_the_memory_of_another(self):
        memory = torch.zeros(6, dtype=torch.int64)
        with pytest.raises(MetadataError, match="memory apart"):
            self.checked(**GOOD | {"out": memory[:4], "lengths": memory[3:5]})

    def test_devices(self):
        with pytest.raises(MetadataError):
            self.checked(**GOOD | {"lengths": GOOD["lengths"].to("meta")})
        with pytest.raises(MetadataError):
            self.checked(**GOOD | {"mirror": GOOD["lengths"].to("meta")})

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("rows", torch.zeros(4, 1), "rows is of dtype torch.float32"),
            ("rows", torch.zeros(2, 2, dtype=torch.int32), "expected 1-D"),
            ("rows", torch.zeros(4, dtype=torch.int32)[::2], "expected a dense last dimension"),
            ("table", torch.zeros(1, 3, dtype=torch.int32), "of length 1, expected at least 2"),
            ("table", torch.zeros(2, 3, dtype=torch.int64), "expected torch.int32, as rows"),
            ("flags", torch.zeros(2, dtype=torch.bool), "of length 2, expected length 3"),
            ("limit", 2, "limit is 2, expected at least the 3 columns"),
        ],
    )
    def test_arrays_that_are_longer_dense_or_columns(self, field, value, message):
        def enough(operation, sizes, limit):
            if limit < sizes["M"]:
                raise MetadataError(operation, "limit", limit, f"at least the {sizes['M']} columns")

        @operation(requires=(enough,))
        def f(
            rows: Annotated[Tensor, Array(shape=("N",), dense=True, column=True)],
            table: Annotated[
                Tensor, Array(shape=("N", "M"), dtype_of="rows", written=True, longer=True)
            ],
            flags: Annotated[Tensor, Array("flags", ("M",))],
            limit: int,
        ) -> None:
            """Do nothing."""

        right = {
            "rows": torch.zeros(2, 1, dtype=torch.int32),
            "table": torch.zeros(5, 3, dtype=torch.int32),
            "flags": torch.zeros(3, dtype=torch.bool),
            "limit": 3,
        }
        f(**right)
        f(**right | {"rows": right["rows"][:, 0]})
        with pytest.raises(MetadataError, match=re.escape(message)):
            f(**right | {field: value})

    def test_offsets_with_stale_entries(self):
        @operation
        def f(
            offsets: Annotated[Tensor, Array("query offsets", longer=True)],
            rows: Annotated[Tensor, Array(shape=("R",))],
            positions: Annotated[Tensor, Array(shape=("T",), written=True, longer=True)],
        ) -> None:
            """Do nothing."""

        rows, positions = torch.zeros(2, dtype=torch.int32), torch.zeros(5, dtype=torch.int64)
        f(torch.tensor([0, 2, 5, -7]), rows, positions)
        for offsets, message in (
            ([0, 2], "offsets is of length 2, expected at least 3"),
            ([0, 2, 1, 9], "non-decreasing"),
            ([0, 2, 6], "positions is of length 5, expected at least 6"),
        ):
            with pytest.raises(MetadataError, match=message):
                f(torch.tensor(offsets), rows, positions)

    def test_an_error_comes_before_the_function_runs(self):
        ran = []

        @operation
        def f(a: Numbers) -> None:
            """Do something."""
            ran.append(a)

        with pytest.raises(MetadataError):
            f(torch.zeros(2))
        assert ran == []


def test_a_batch_of_computed_and_query_lengths():
    @operation
    def f(
        computed: ComputedLens, queries: QueryLens, table: BlockTable, block_size: BlockSize
    ) -> tuple[Positions, RequestIndices]:
        """Compute something."""
        return torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int64)

    table = torch.zeros(2, 2, dtype=torch.int32)
    f(torch.tensor([3, 4]), torch.tensor([5, 4]), table, 4)
    with pytest.raises(MetadataError, match="at least 3"):
        f(torch.tensor([3, 4]), torch.tensor([6, 4]), table, 4)


class TestChecksOfResults:
    @pytest.mark.parametrize(
        ("hint", "value", "problem"),
        [
            (Numbers, None, "result is NoneType, declared is Tensor"),
            (Numbers, torch.zeros(2), "result is float32, declared is int32 or int64"),
            (Numbers, torch.tensor([1]), "result is of shape (1,), declared is (2,)"),
            (Numbers, torch.tensor([[1, 2]]), "result is of shape (1, 2), declared is (2,)"),
            (int, torch.tensor(1), "result is Tensor, declared is int"),
            (int, True, "result is bool, declared is int"),
            (float, 1, "result is int, declared is float"),
            (None, 1, "returns int, declared is None"),
            (tuple[int, int], (1,), "returns 1 values, declared are 2 results"),
            (tuple[int, int], [1, 2], "returns list, declared are 2 results"),
            (tuple[int, bool], (1, 2), "result[1] is int, declared is bool"),
        ],
    )
    def test_another_result(self, hint, value, problem):
        @operation
        def f(a: Numbers) -> hint:
            """Return something."""
            return value

        with pytest.raises(DefinitionError) as caught:
            f(torch.tensor([1, 2]))
        between = " " if problem.startswith("returns") else ": "
        assert str(caught.value).endswith(f": f{between}{problem}")

    @pytest.mark.parametrize(
        ("hint", "value"),
        [
            (Numbers, torch.tensor([1, 2])),
            (Numbers | None, None),
            (int | None, None),
            (int | None, 3),
            (Annotated[Tensor, Array(shape=("?",))], torch.tensor([1, 2, 3])),
            (Annotated[Tensor, Array(shape=())], torch.tensor(3)),
            (Annotated[Tensor, Array("data", ("N",), tolerance=0.1)], torch.zeros(2).double()),
            (tuple[int, str], (1, "")),
            (None, None),
        ],
    )
    def test_a_result_as_declared(self, hint, value):
        @operation
        def f(a: Numbers) -> hint:
            """Return something."""
            return value

        assert f(torch.tensor([1, 2])) is value


def test_declarations_have_a_short_text():
    assert str(Array("slots", written=True)) == "<written slots (T) int64>"
    assert str(Int(axis="N", least=1, below=9)) == "<N, at least 1 and below 9>"
    assert Flag() == Flag()
