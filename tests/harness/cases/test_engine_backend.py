"""The small engine backend makes metadata classes of every form and kind of field."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.cases.engines import backend as engine

EVERY = list(range(engine.ATTACHED + 1))


def built(form, kinds=EVERY):
    metadata, _ = lay_out(make_batch([3, 4], [2, 0], 4))
    builder = engine.make_builder(engine.make_backend(form, kinds))
    return builder.build(0, metadata), builder


@pytest.mark.parametrize("form", range(5))
def test_built_metadata_has_the_expected_values(form):
    made, builder = built(form)
    assert {name: getattr(made, name) for name in engine.field_names(EVERY)} == (
        engine.expected_values(EVERY)
    )
    assert made.num_actual_tokens == 7
    assert len(builder.given) == 1
    assert type(made).__name__ == "EngineMetadata"


def test_forms_differ():
    assert [is_dataclass(built(form)[0]) for form in range(5)] == [True] * 3 + [False] * 2
    assert [hasattr(built(form)[0], "__dict__") for form in range(5)] == [
        *(True, True, False, True, False)
    ]
    with pytest.raises(FrozenInstanceError):
        built(engine.FROZEN)[0].detail_0 = 1


def test_kinds_of_fields_differ():
    by_name = {field.name: field for field in fields(built(engine.DATACLASS)[0])}
    names = engine.field_names(EVERY)
    assert names[engine.ATTACHED] not in by_name
    assert by_name[names[engine.KEYWORD]].kw_only
    assert not by_name[names[engine.COMPUTED]].init
