"""Signatures of a candidate that no call of an operation fits."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import Parameter
from itertools import islice
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import msgspec

from attnproof import reference
from attnproof.harness.interfaces import INTERFACES
from attnproof.harness.model.call_kinds import ClassCall, FunctionCall, bound
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.text import utf8
from attnproof.harness.operations.derived.derive import OWN
from attnproof.harness.running.loading import offered_by

_TRIED = 10
"""Most edge cases whose calls are compared with a signature."""
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Misfit(msgspec.Struct, frozen=True):
    """The difference between a signature and the calls of an operation."""

    what: str
    """Verb phrase, such as "lacks num_padded_tokens"."""
    detail: str
    """The call and the signature, and the interfaces whose calls fit."""
    by_order: bool
    """True if the call can be made: only the order of the names is another one."""

    @property
    def sentence(self) -> str:
        """The difference in one line."""
        return f"its signature {self.what}: {self.detail}"


class _Call(NamedTuple):
    """A function or method, and arguments that an operation calls it with."""

    member: str
    """Name of the method, "" for a function and for the instantiation of a class."""
    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    names: list[str]
    """Names of `args` in the operation's signature."""


def misfits(
    module: Any, operations: Iterable[Operation], interface: str
) -> Iterator[tuple[str, Misfit]]:
    """Yield the operations of which no call fits the candidate's signature."""
    for operation in operations:
        with suppress(BaseException):  # a candidate may raise SystemExit in the look-up
            misfit = misfit_of(module, operation, interface)
            if misfit is not None:
                yield operation.name, misfit


def misfit_of(module: Any, operation: Operation, interface: str) -> Misfit | None:
    """Return why no call of the operation fits the candidate's signature, None if one may.

    Calls are those of the `interface`. What has no signature, such as compiled code, takes any.
    """
    misfit = _misfit(module, operation, interface)
    if misfit is None or not interface or isinstance(operation.call, ClassCall):
        return misfit
    fitting = [name for name in INTERFACES if _misfit(module, operation, name) is None]
    accepted = f"; it fits --interface {' or '.join(fitting)}" if fitting else ""
    return msgspec.structs.replace(misfit, detail=misfit.detail + accepted)


def _misfit(module: Any, operation: Operation, interface: str) -> Misfit | None:
    offered = offered_by(module, operation, interface)
    misfits: dict[str, Misfit | None] = {}
    is_class_of_ours = isinstance(operation.call, ClassCall) and operation.section != OWN
    if offered is None or (is_class_of_ours and offered is not getattr(module, operation.name, 0)):
        return None  # an engine's class that takes our arguments
    calls = _usual_calls if is_class_of_ours else _calls
    for together in calls(operation, offered, interface):
        for call in together:
            if misfits.get(call.member, call) is not None:
                misfits[call.member] = _compared(operation.name, call)
        if not any(misfits.values()):
            return None
    return next(filter(None, misfits.values()), None)


def _calls(operation: Operation, offered: Any, interface: str) -> Iterator[list[_Call]]:
    """Yield the calls of each of some edge cases."""
    kind = operation.call
    if not isinstance(kind, FunctionCall):
        return  # the functions of a sequence are operations themselves
    real = (case for _, case in operation.inputs.boundaries() if not operation.why_unreal(case))
    for case in islice(real, _TRIED):
        call = kind.prepare(INTERFACES[interface].fit(case) if interface else case, 0, "cpu")
        bind = partial if isinstance(kind, ClassCall) else bound
        thunk = bind(offered, *call.args.values(), **call.kwargs)
        if not isinstance(thunk, partial):
            return  # a function of an adapter that makes a call of its own
        steps = call.facts.steps if isinstance(kind, ClassCall) else ()
        yield [
            _Call("", thunk.func, thunk.args, thunk.keywords, _named(call.args, thunk.args)),
            *(_Call(n, _method(offered, n), [*a.values()], k, [*a]) for n, a, k in steps),
        ]


def _usual_calls(operation: Operation, offered: Any, _interface: str) -> Iterator[list[_Call]]:
    """Yield calls with the arguments that the reference takes, by place and by name."""
    ours, calls = getattr(reference, operation.name), list[_Call]()
    methods = getattr(operation.call, "methods", ())
    # A class without required methods is subclassed, with an initialisation of its own.
    for method in ("", *methods) if methods or not inspect.isclass(offered) else ():
        function, own = (_method(cls, method) if method else cls for cls in (offered, ours))
        parameters = (_signature(own) or inspect.Signature()).parameters
        theirs = (_signature(function) or inspect.Signature()).parameters
        known = [n for n, p in parameters.items() if p.default is Parameter.empty or n in theirs]
        by_place = [name for name, p in parameters.items() if p.kind in _BY_PLACE]
        for count in range(len(by_place), -1, -1) if callable(own) else ():
            names = by_place[:count]
            kwargs = dict.fromkeys(name for name in known if name not in names)
            calls.append(_Call(method, function, names, kwargs, names))
    yield calls


def _named(arguments: Mapping[str, Any], converted: Sequence[Any]) -> list[str]:
    """Return the names of arguments, numbers if there are more of them after the conversion."""
    if len(converted) > len(arguments):
        return [f"argument {n + 1}" for n, _ in enumerate(converted)]
    return [*arguments][: len(converted)]


def _method(cls: Any, name: str) -> Any:
    """Return the method as an object has it."""
    method = inspect.getattr_static(cls, name, None)
    return MethodType(method, cls) if isinstance(method, FunctionType) else getattr(cls, name, None)


def _signature(function: Any) -> inspect.Signature | None:
    """Return the signature, of a decorated function that of the decorator; None if unknown."""
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def _compared(operation: str, call: _Call) -> Misfit | None:
    """Return why the call does not fit the function, None if it does."""
    signature = _signature(call.function)
    if signature is None:
        return None
    ours = call.names
    theirs = [name for name, p in signature.parameters.items() if p.kind in _BY_PLACE]
    by_order = False
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        what = _difference(signature, call, theirs) or str(error)
    else:
        by_order = {*ours} <= {*theirs} and ours != theirs[: len(ours)]
        if not by_order:
            return None
        what = "has the arguments in another order"
    bare = [p.replace(annotation=Parameter.empty) for p in signature.parameters.values()]
    arguments = ", ".join([*ours, *(f"{name}=..." for name in call.kwargs)])
    name = f"{operation}.{call.member}" if call.member else operation
    detail = f"the call is {name}({arguments}), the candidate takes {inspect.Signature(bare)}"
    return Misfit(utf8(what)[:300], utf8(detail)[:600], by_order)


def _difference(signature: inspect.Signature, call: _Call, theirs: list[str]) -> str:
    """Return the arguments that only the call or only the function has, in words."""
    parameters, kinds = signature.parameters, {p.kind for p in signature.parameters.values()}
    lacking = [] if Parameter.VAR_POSITIONAL in kinds else _beyond(call.names, theirs)
    if Parameter.VAR_KEYWORD not in kinds:
        lacking += [name for name in call.kwargs if name not in parameters]
    by_name = [name for name in lacking if name in parameters]
    required = [
        name
        for name, p in parameters.items()
        if p.default is Parameter.empty and (p.kind is Parameter.KEYWORD_ONLY or name in theirs)
    ]
    supplied = {*call.kwargs, *by_name} | ({*theirs} - {*_beyond(theirs, call.names)})
    words = {
        "lacks": [name for name in lacking if name not in by_name],
        "takes by name only": by_name,
        "requires": [name for name in required if name not in supplied],
    }
    return ", ".join(f"{verb} {' and '.join(names)}" for verb, names in words.items() if names)


def _beyond(names: list[str], others: list[str]) -> list[str]:
    """Return the names that have no place among the others: the unknown ones, else the last."""
    unknown = [name for name in names if name not in others]
    count = max(0, len(names) - len(others))
    return unknown if len(unknown) == count else names[len(others) :]
