"""The file of known deviations: its entries, its mistakes, the failures that it explains."""

from __future__ import annotations

import datetime
import resource
import sys
import time
from pathlib import Path

import msgspec
import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.candidates import version_of
from attnproof.harness.running.task import conditions
from attnproof.harness.running.task.conditions import NAMES
from attnproof.harness.running.task.deviations import DeviationError, explain, known, load

SPLIT = "split_decodes_and_prefills"
PADDED = Case(SPLIT, make_batch([2, 2], [3, 3], 4, padded_requests=1), {"decode_threshold": 2})
PLAIN = Case(SPLIT, make_batch([2, 2], [3, 3], 4), {"decode_threshold": 2})
ENTRY = {
    "id": "E2",
    "title": "counts padded rows as prefills",
    "operations": [SPLIT],
    "versions": ">=0.10,<0.12",
    "reference": "docs/SPEC.md, section 2",
    "when": "padded_requests > 0",
}


def failure(oracle="equality", field="num_decodes"):
    return Failure(oracle=oracle, field=field, diagnosis="wrong", message="it is wrong")


def deviation(**changes):
    return msgspec.convert(ENTRY | changes, Deviation)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write entries to known.toml in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(*entries):
        lines = []
        for entry in entries:
            lines.append("[[deviation]]")
            for key, value in entry.items():
                day = isinstance(value, datetime.date)
                shown = value if day else msgspec.json.encode(value).decode()
                lines.append(f"{key} = {shown}")
        (tmp_path / "known.toml").write_text("\n".join(lines), encoding="utf-8")
        return "known.toml"

    return write


def test_only_entries_of_the_version_are_loaded(written):
    later = ENTRY | {"id": "E3", "versions": ">=0.12"}
    always = ENTRY | {"id": "E4", "versions": "*", "since": datetime.date(2025, 10, 1)}
    path = written(ENTRY, later, always)
    assert [entry.id for entry in load(path, "0.11.2")] == ["E2", "E4"]
    assert [entry.id for entry in load(path, "0.32.0")] == ["E3", "E4"]
    assert [entry.id for entry in load(path, "0.12.0rc1")] == ["E4"]
    assert load(path, "0.11.2")[1].since == "2025-10-01"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operations": ["nonesuch"]}, "no operation 'nonesuch'"),
        ({"operations": []}, "operations is empty"),
        ({"oracles": ["taste"]}, "no oracle 'taste': expected some of process, errors"),
        ({"versions": "0.10 to 0.12"}, "versions is '0.10 to 0.12', expected such as"),
        ({"versions": ""}, 'versions is empty, write "[*]" for any'),
        ({"since": "yesterday"}, "since is 'yesterday': expected a day"),
        ({"when": "q ="}, "when is no expression"),
        ({"when": "rows > 1"}, "when uses 'rows', which is not one of q, c, s, R"),
        ({"when": "open('x')"}, "when uses 'open'"),
        ({"when": "(lambda: q)()"}, "when is no expression: Lambda is not supported"),
        ({"reference": ""}, "reference is empty"),
        ({"title": 3}, r"Expected `str`, got `int` - at `\$.title`"),
        ({"version": "*"}, "unknown field `version`"),
    ],
)
def test_mistakes_in_the_file_are_one_line(written, changes, message):
    start = r"^deviations file known\.toml, entry 1 \(E2\): (Object contains )?"
    with pytest.raises(DeviationError, match=start + message) as raised:
        load(written(ENTRY | changes), "0.11.2")
    assert "\n" not in str(raised.value)


def test_file_must_exist_and_be_toml(written, tmp_path):
    with pytest.raises(DeviationError, match=r"none\.toml cannot be read: No such file"):
        load("none.toml", "0.11.2")
    (tmp_path / "known.toml").write_text("deviation = [", encoding="utf-8")
    with pytest.raises(DeviationError, match=r"known\.toml is not TOML: "):
        load("known.toml", "0.11.2")
    (tmp_path / "known.toml").write_text("[deviations]\n", encoding="utf-8")
    with pytest.raises(DeviationError, match="deviations is not expected at the top"):
        load("known.toml", "0.11.2")


def test_id_is_unique_for_an_operation_and_version(written):
    path = written(ENTRY, ENTRY | {"versions": ">=0.12"})
    assert len(load(path, "0.11.2")) == 1
    with pytest.raises(DeviationError, match=f"two entries E2 hold for {SPLIT} in version 0.11.2"):
        load(written(ENTRY, ENTRY | {"versions": ">=0.11"}), "0.11.2")


def test_a_file_of_many_entries_is_read_in_proportion(written):
    path = written(*(ENTRY | {"id": f"E{number}"} for number in range(10_000)))
    begun = time.process_time()
    assert len(load(path, "0.11.2")) == 10_000
    assert time.process_time() - begun < 30.0  # pairs of entries would take minutes


@pytest.mark.parametrize("version", ["", "of today"])
def test_without_a_version_entries_must_hold_for_any(written, version):
    assert load(written(ENTRY | {"versions": "*"}), version)
    with pytest.raises(DeviationError, match=r"write versions = '\*'"):
        load(written(ENTRY), version)


@pytest.mark.parametrize(
    "when",
    [
        "q.__class__.__mro__",
        "batch.__struct_fields__",
        "params.pop('decode_threshold')",
        "q.append(1)",
        "'{0.__class__}'.format(q)",
        "sum(range(10 ** 9))",
        "len([0] * 10 ** 9)",
        "10 ** 10 ** 10",
        "[x for a in range(2000) for x in range(2000)]",
    ],
)
def test_a_condition_reads_numbers_only(written, when):
    entry = load(written(ENTRY | {"when": when}), "0.11.2")
    with pytest.raises(DeviationError, match=r"when (raises|takes more than 1 s or 256 MiB)"):
        known(entry, PADDED, failure())


@pytest.mark.parametrize(
    "when",
    [
        "any([max(range(1000000)) < 0 for i in range(1000000)])",
        "len([3 ** 4000000 for i in range(1000000)])",
        "len(set([i * (2 ** 61 - 1) for i in range(200000)]))",
        "sum(range(10 ** 15))",
        "all(zip(range(10 ** 15)))",
    ],
)
def test_a_condition_has_a_second(when):
    with pytest.raises(DeviationError, match="E2: when takes more than 1 s or 256 MiB on case"):
        known([deviation(when=when)], PADDED, failure())
    assert known([deviation(when="R == 3")], PADDED, failure())  # the next one has its own


@pytest.mark.parametrize(
    "when",
    [
        "len([list(range(1000000)) for i in range(1000)])",
        "len(list(range(10 ** 9)))",
        "len('%1500000000d' % 1)",
        "len(f'{1:>1000000000}')",
        "len(str([0] * 90000) * 90000)",
        "dict(enumerate(range(10 ** 9)))",
    ],
)
def test_a_condition_has_256_mib(when):
    with pytest.raises(DeviationError, match=r"when (raises MemoryError|raises Iter|takes more)"):
        known([deviation(when=when)], PADDED, failure())
    biggest_child_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    own_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert biggest_child_kib < own_kib + (300 << 10)
    assert known([deviation(when="R == 3")], PADDED, failure())


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("1 + " * 3000 + "1", "it has 12001 characters, more than 10000"),
        ("\0", "null character"),
        ("(" * 900 + ")" * 900, "when is "),
        ("-" * 9000 + "1", "when is nested too deeply"),
    ],
)
def test_a_condition_that_no_parser_should_read_is_refused(written, when, words):
    with pytest.raises(DeviationError, match=words):
        load(written(ENTRY | {"when": when}), "0.11.2")


def test_patterns_of_many_stars_are_matched_at_once():
    entry = deviation(fields=["*a" * 60 + "*b"])
    begun = time.process_time()
    assert known([entry], PADDED, failure(field="a" * 5000)) is None
    assert time.process_time() - begun < 1.0
    assert known([entry], PADDED, failure(field="xa" * 60 + "b")) is entry
    assert known([deviation(fields=["ab*ba"])], PADDED, failure(field="aba")) is None


def test_a_forked_process_has_conditions_of_its_own(forked):
    entry = deviation(when="R == 3")
    assert known([entry], PADDED, failure())
    done = forked(lambda: sys.exit(len([known([entry], PADDED, failure())])))
    assert done.returncode == 1, done.stderr
    assert known([entry], PADDED, failure())


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("padded_requests == 1 and R == 3 and T == 4", True),
        ("q == [2, 2, 0] and c == [3, 3, 0] and s == [5, 5, 0]", True),
        ("B == 4 and W == 2 and len(blocks) == 2", True),
        ("params['decode_threshold'] > 2", False),
        ("any(x == 0 for x in q) and not fault", True),
        ("batch.strided or batch.dtype == 'int64'", False),
        ("sorted(q)[0] == 0 and sum(b - a for a, b in pairwise(q)) == -2", True),
        ("q.count(2) == 2 and [x for x in range(3)] == list(range(3))", True),
    ],
)
def test_names_of_a_condition(written, when, holds):
    entry = load(written(ENTRY | {"when": when}), "0.11.2")
    assert (known(entry, PADDED, failure()) is not None) is holds


def test_a_case_without_a_batch_has_empty_lists():
    case = Case(SPLIT, None, {"steps": [1]})
    entry = deviation(when="q == s == c == blocks == [] and R == T == B == W == 0 and steps == [1]")
    assert known([entry], case, failure()) is entry


def test_operation_oracle_field_and_expression_must_all_fit():
    entry = deviation(oracles=["equality", "padding"], fields=["[].seq_*", "num_decodes"])
    assert known([entry], PADDED, failure()) is entry
    assert known([entry], PADDED, failure("padding", "[].seq_lens")) is entry
    assert known([entry], PADDED, failure("purity")) is None
    assert known([entry], PADDED, failure(field="num_decode")) is None
    assert known([entry], PADDED, failure(field="[]-seq_lens")) is None
    assert known([entry], PLAIN, failure()) is None
    other = msgspec.structs.replace(PADDED, operation="build_slot_mapping")
    assert known([entry], other, failure()) is None


def test_one_of_two_diagnoses_in_a_field_is_explained():
    entry = deviation(fields=["num_decodes"], diagnoses=["shares memory with *"])
    shared, modified = (
        msgspec.structs.replace(failure("purity"), diagnosis=said)
        for said in ("shares memory with an input", "input modified")
    )
    assert known([entry], PADDED, shared) is entry
    assert known([entry], PADDED, modified) is None


def test_condition_that_raises_is_a_mistake_of_the_file():
    entry = deviation(when="q[5] > 1")
    with pytest.raises(DeviationError, match=r"E2: when raises IndexError .* on case \w{12} of"):
        known([entry], PADDED, failure())


def test_failures_of_the_consumer_follow_from_known_deviations():
    entry = deviation(fields=["num_decodes"])
    seen, other = failure("consumer", "row 0"), failure("purity", "seq_lens")
    sorted_out = explain((entry,), PADDED, (failure(), seen))
    assert sorted_out.unknown == ()
    assert [pair[0].id for pair in sorted_out.known] == ["E2", "E2"]
    assert explain((entry,), PADDED, (seen,)).unknown == (seen,)
    assert explain((entry,), PADDED, (failure(), seen, other)).unknown == (seen, other)
    limited = deviation(oracles=["equality"])
    assert explain((limited,), PADDED, (failure(), seen)).unknown == (seen,)


def test_the_example_of_the_documentation_is_right(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "deviations.md").read_text(encoding="utf-8")
    path = tmp_path / "known.toml"
    path.write_text(
        page.split("```toml\n[[deviation]]")[1].split("```")[0].join(["[[deviation]]", ""])
    )
    assert [entry.id for entry in load(str(path), "0.11.2")] == ["E2", "no-checks"]
    for name in NAMES:
        assert f"`{name}`" in page


def test_version_of_a_candidate_is_its_packages():
    assert version_of(Candidate("a", "numpy:ndarray"))
    assert version_of(Candidate("a", "/some/where/backend.py")) == ""
    assert version_of(Candidate("a", "no_such_module")) == ""


def test_a_condition_without_its_package_is_one_line(written, monkeypatch):
    monkeypatch.setitem(sys.modules, "simpleeval", None)
    conditions._evaluator.cache_clear()
    conditions.compiled.cache_clear()
    with pytest.raises(DeviationError, match="when needs the package simpleeval: install it"):
        load(written(ENTRY), "0.11.2")
