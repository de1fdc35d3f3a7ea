"""Program of a case, and what the manager answered in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from functools import lru_cache
from typing import Any

import msgspec

from attnproof.harness.model.call import Call as OperationCall
from attnproof.harness.model.call import Free, Outputs
from attnproof.harness.model.case import Case
from attnproof.harness.model.place import place_of, step_outputs
from attnproof.harness.model.program import Code, Script
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.kv_manager.engine import Engine
from attnproof.harness.operations.kv_manager.ledger import NULL, Ledger
from attnproof.harness.operations.kv_manager.steps import Call, Calls, sizes_of
from attnproof.reference import KVCacheManager

_REFUSED = "allocate_nothing"
_IMPORTS = {
    "CacheGroup": "attnproof.reference",
    "Engine": "attnproof.harness.operations.kv_manager.engine",
}


def script(case: Case, _pattern: int) -> Script:
    """Return the calls of the case, and whether their answers are the same for all managers."""
    params = case.params
    setup = Code()
    sizes = sizes_of(params)
    groups = [setup.CacheGroup(*astuple(group)) for group in sizes.groups]
    setup.manager = setup.KVCacheManager(sizes.num_blocks, groups, *sizes[2:])
    setup.engine = setup.Engine(setup.manager, sizes.max_model_len, sizes.state_size)
    choice = _first_choice(msgspec.json.encode(params))
    lines = []
    for index, call in enumerate(Calls(params)):
        code = Code()
        if index == choice:
            code.engine.exact = False
        getattr(code.engine, call.do)(*call.arguments, **call.options)
        lines.append(code.line(_label(call), refused=call.do == _REFUSED, kind=call.do))
    return Script(_IMPORTS, setup.statements, tuple(lines))


@lru_cache(maxsize=4)  # a case is judged, counted and shown by scripts of its own
def _first_choice(encoded: bytes) -> int | None:
    """Return the first call from which on the answers depend on a manager's choice.

    `encoded` are the parameters of a case as JSON.
    """
    params = msgspec.json.decode(encoded)
    sizes = sizes_of(params)
    ledger = Ledger(sizes)
    engine = Engine(KVCacheManager(*sizes), sizes.max_model_len, sizes.state_size)
    for index, call in enumerate(Calls(params)):
        if call.do != _REFUSED:
            getattr(engine, call.do)(*call.arguments, **call.options)
            for _violation in ledger.judge(call, engine.look()):
                pass  # the generator keeps the books
        if ledger.has_choice:
            return index
    return None


def _label(call: Call) -> str:
    match call.do:
        case "add":
            tokens, like, shared, rejoins = call.numbers
            others = f", all but that at {shared}" if rejoins else f", up to {shared}"
            prefix = f"{others} as those of {like}" if like else ""
            return f"add {call.name} of {tokens} tokens{prefix}"
        case "schedule":
            options = [f"{key} {value}" for key, value in call.options.items() if key != "chunk"]
            chunk = call.options["chunk"]
            return f"schedule {call.name}: up to {', '.join([f'{chunk} tokens', *options])}"
        case "evict":
            return f"evict the blocks of {call.name} from index {call.numbers[0]} on"
        case "allocate_nothing":
            return f"allocate nothing for {call.name}"
    return f"{call.do} {call.name}".strip()


def observe(names: dict[str, Any]) -> Outputs:
    """Return the answers, and beside them, causes first, those that all managers give."""
    engine = names["engine"]
    seen = engine.look()
    outputs: Outputs = {"seen": Free(**seen)}
    if engine.exact:
        tables = seen["tables"]
        answers = {name: seen.get(name) for name in ("hits", "fits", "reset", "free")}
        answers["blocks"] = [list(map(len, groups)) for groups in tables]
        answers["nulls"] = [[table.count(NULL) for table in groups] for groups in tables]
        # What a running request frees decides what fits; a waiting one frees nothing.
        first = ("nulls", "fits") if answers["hits"] is None else ("fits", "nulls")
        outputs |= {name: answers[name] for name in ("hits", *first, "blocks", "reset", "free")}
    return outputs


def steps_consumed(call: OperationCall, outputs: Outputs) -> Iterator[Violation]:
    """Yield the violations of the first step that adopts, takes or frees the wrong blocks."""
    params = call.facts.case.params
    ledger = Ledger(sizes_of(params))
    for index, each in enumerate(Calls(params)):
        step = step_outputs(outputs, index)
        if each.do == _REFUSED:
            continue
        raised = step.get("raises", "never") is not None
        if raised and "seen" not in step:
            return  # the sequence ended before this step
        seen = step["seen"].values
        violations = list((ledger.judge_hits if raised else ledger.judge)(each, seen))
        for violation in violations:
            yield violation._replace(field=place_of(violation.field)._replace(step=index))
        if violations or raised:
            return
