"""Operation of SPEC.md section 7: the dimensions of multi-head latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.cases.engines.config import ModelConfig, TextConfig
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.params import Params
from attnproof.reference.interface import MetadataError, MLADims

MLA = "get_mla_dims"
_DEEPSEEK = (1536, 512, 128, 64, 128)


class _Params(Params):
    q_lora_rank: Count
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    says_none: bool
    of_class: bool = False
    """True if the fields are attributes of the config's class."""


def _mla_case(dims: tuple[int, ...], *, says_none: bool = False, of_class: bool = False) -> Case:
    """Return a case; rank 0 stands for no q_lora_rank.

    `says_none`: True if the config has the field with the value None, False if it lacks the field.
    """
    named = dict(zip(MLADims._fields, dims, strict=True))
    return Case(MLA, None, named | {"says_none": says_none, "of_class": of_class})


def _mla_cases() -> st.SearchStrategy[Case]:
    size = st.sampled_from((1, 64, 128, 192, 512)) | st.integers(1, 2000)
    dims = st.tuples(st.just(0) | size, size, size, size, size)
    return st.builds(
        lambda dims, says_none, of_class: _mla_case(dims, says_none=says_none, of_class=of_class),
        dims,
        st.booleans(),
        st.booleans(),
    )


def _mla_boundaries() -> Iterator[tuple[str, Case]]:
    yield "compressed queries", _mla_case(_DEEPSEEK)
    yield "queries as they are, said", _mla_case((0, *_DEEPSEEK[1:]), says_none=True)
    yield "queries as they are, left out", _mla_case((0, *_DEEPSEEK[1:]))
    yield "every dimension another", _mla_case((7, 6, 5, 4, 3))
    yield "attributes of the config's class", _mla_case(_DEEPSEEK, of_class=True)


def _mla_steps(batch: Batch) -> Iterator[Case]:
    yield _mla_case((batch.num_requests, 512, 128, 64, batch.block_size))


@dataclass(frozen=True, kw_only=True)
class _DimFacts(Facts):
    dims: dict[str, int | None]
    """Dimensions of the config by name, None for one without a value."""


def _prepare_mla(case: Case, _pattern: int, _device: str) -> Call:
    params = case.params
    dims: dict[str, int | None] = {name: max(1, params[name]) for name in MLADims._fields}
    if not params["q_lora_rank"]:
        dims["q_lora_rank"] = None
    attributes = {k: v for k, v in dims.items() if v is not None or params["says_none"]}
    attributes |= {"hidden_size": 7168, "head_dim": 192, "qk_head_dim": 192}
    if params.get("of_class"):
        config: TextConfig = type(TextConfig.__name__, (TextConfig,), attributes)()
    else:
        config = TextConfig(**attributes)
    return Call(
        {"model_config": ModelConfig(config)},
        plain={"hf_text_config": vars(config)},
        facts=_DimFacts(dims=dims),
    )


def _mla_outputs(_call: Call, result: Any) -> Outputs:
    return {name: getattr(result, name, MISSING) for name in MLADims._fields}


def _mla_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    for name, value in call.facts.dims.items():
        if outputs[name] != value:
            yield Violation(name, "does not agree with the model's config")


def _mla_diagnosis(call: Call, place: Place, expected: Any, got: Any) -> str:
    dims = {name: value for name, value in call.facts.dims.items() if value is not None}
    taken = [name for name, value in dims.items() if value == got and name != place.field]
    return f"{taken[0]} where {place.field} belongs" if taken and got != expected else ""


def _config_fault(
    field: str, value: Any = MISSING, error: type[Exception] = MetadataError
) -> Fault:
    """Return the fault of a config whose field has this value, or is missing."""

    def change(config: Any) -> Any:
        text_config = config.hf_text_config
        names = [name for name in dir(text_config) if not name.startswith("_") and name != field]
        fields = {name: getattr(text_config, name) for name in names}
        if value is not MISSING:
            fields[field] = value
        return ModelConfig(TextConfig(**fields))

    return Fault("model_config", change, field, error)


get_mla_dims = Operation(
    name=MLA,
    section="7",
    summary="dimensions of multi-head latent attention from a model's config",
    inputs=Inputs(
        params=_Params,
        has_batch=False,
        cases=_mla_cases,
        boundaries=_mla_boundaries,
        from_batch=_mla_steps,
        faults={
            "model without latent attention": _config_fault("kv_lora_rank"),
            "no rotary part": _config_fault("qk_rope_head_dim"),
            "head of no size": _config_fault("v_head_dim", 0),
            "queries of rank 0": _config_fault("q_lora_rank", 0),
            "dimension of another type": _config_fault("qk_nope_head_dim", 128.0, TypeError),
        },
    ),
    call=FunctionCall(prepare=_prepare_mla, outputs=_mla_outputs),
    contract=Contract(invariants=_mla_invariants, diagnose=_mla_diagnosis),
    bench=Bench(never="runs once when a model is loaded"),
    built_in=BuiltIn(shared="runs once when a model is loaded: nothing to make faster"),
)

OPERATIONS = (get_mla_dims,)
