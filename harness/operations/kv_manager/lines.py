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
from attnproof.harness.model.place import by_step, place_of
from attnproof.harness.model.program import Code, Script
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.kv_manager.engine import Engine
from attnproof.harness.operations.kv_manager.ledger import Ledger
from attnproof.harness.operations.kv_manager.memory import NULL
from attnproof.harness.operations.kv_manager.steps import Call, Calls, sizes_of
from attnproof.reference import KVCacheManager

_REFUSED = "allocate_nothing"
_IMPORTS = {
    "CacheGroup": "attnproof.reference",
    "Engine": "attnproof.harness.operations.kv_manager.engine",
}


def script(case: Case, _pattern: int) -> Script:
    """Return the calls of the case, and whether their answers are the same for all managers."""
    return _script(msgspec.json.encode(case.params))


@lru_cache(maxsize=4)  # a case is called, judged, counted and shown by its script
def _script(encoded: bytes) -> Script:
    """Return the script of the case with these parameters, as JSON."""
    params = msgspec.json.decode(encoded)
    setup = Code()
    sizes = sizes_of(params)
    groups = [setup.CacheGroup(*astuple(group)) for group in sizes.groups]
    sparse = {} if sizes.retention is None else {"retention_interval": sizes.retention}
    setup.manager = setup.KVCacheManager(sizes.num_blocks, groups, *sizes[2:-1], **sparse)
    setup.engine = setup.Engine(setup.manager, sizes.max_model_len, sizes.state_size)
    choice = _first_choice(params)
    lines = []
    for index, call in enumerate(Calls(params)):
        code = Code()
        if index == choice:
            code.engine.exact = False
        getattr(code.engine, call.do)(*call.arguments, **call.options)
        lines.append(code.line(_label(call), refused=call.do == _REFUSED, kind=call.do))
    return Script(_IMPORTS, setup.statements, tuple(lines))


def _first_choice(params: dict[str, Any]) -> int | None:
    """Return the first call from which on the answers depend on a manager's choice."""
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
        tables = [tables for tables in engine.tables.values() if tables is not None]
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
    ledger, steps = Ledger(sizes_of(params)), by_step(outputs)
    for index, each in enumerate(Calls(params)):
        step = steps[index]
        if "seen" not in step:
            return  # the sequence ended before this step
        raised = step["raises"] is not None and each.do != _REFUSED
        seen = step["seen"].values
        violations = list((ledger.judge_hits if raised else ledger.judge)(each, seen))
        for violation in violations:
            yield violation._replace(field=place_of(violation.field)._replace(step=index))
        if violations or raised:
            return
