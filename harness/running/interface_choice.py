"""The interface of a candidate: declared, or that of the classes that its functions name.

An installed engine offers a choice and never makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from attnproof.harness.cases.variation.altered_calls import fault_of
from attnproof.harness.interfaces import DEFAULT, INTERFACES
from attnproof.harness.interfaces.naming import Choice, chosen_interface
from attnproof.harness.interfaces.weakest import weakest_interface
from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.place import Place
from attnproof.harness.model.text import near_hint
from attnproof.harness.operations import ALL
from attnproof.harness.running.engines import engine_of, interface_of
from attnproof.harness.running.errors import UsageError


def interface_to_adapt(candidate: Candidate) -> str:
    """Return the interface to convert arguments and results to, "" if ours."""
    return "" if engine_of(candidate.target) else candidate.interface


def with_interface(candidates: list[Candidate], name: str) -> list[Candidate]:
    """Return the candidates with the interface of this name (UsageError).

    Without a name it is the one that the candidate's entry point or table declares, otherwise
    none yet: `with_named_interface` finds it when the candidate is imported. Built-in candidates
    speak every interface, and an adapter that of its engine.
    """
    if name and name not in INTERFACES:
        hint = near_hint(name, INTERFACES)
        raise UsageError(f"--interface is {name!r}: {hint}expected one of {', '.join(INTERFACES)}")
    chosen = []
    for candidate in candidates:
        engine = engine_of(candidate.target)
        interface = candidate.interface
        reason = candidate.interface_reason or "declared by the group of its entry point"
        if candidate.target in (OPTIMIZED, REFERENCE):
            interface = ""
        elif engine:
            interface, reason = interface_of(engine), f"that of the installed {engine.title}"
        elif name:
            interface, reason = name, "declared by an option or in pyproject.toml"
        if interface:
            candidate = msgspec.structs.replace(  # noqa: PLW2901
                candidate, interface=interface, interface_reason=reason
            )
        chosen.append(candidate)
    return chosen


def with_named_interface(candidate: Candidate, module: Any) -> Candidate:
    """Return the candidate with an interface: that of the classes which its functions name.

    `module` is the imported candidate. A declared interface stays as it is.
    """
    if candidate.interface or candidate.target in (OPTIMIZED, REFERENCE):
        return candidate
    try:
        parts = [getattr(module, name, None) for name in _operation_names()]
        chosen = chosen_interface([part for part in parts if callable(part)], DEFAULT)
    except BaseException:  # the candidate has broken what the search needs
        chosen = Choice(DEFAULT, "its functions cannot be searched for a class of batches")
    return with_reported_interface(candidate, *chosen)


def with_reported_interface(candidate: Candidate, interface: str, reason: str) -> Candidate:
    """Return the candidate with the interface that its worker reports, if that chose one."""
    if candidate.interface or interface not in INTERFACES:
        return candidate
    return msgspec.structs.replace(
        candidate, interface=interface, interface_reason=reason, declared=False
    )


@lru_cache(maxsize=1)
def _operation_names() -> list[str]:
    """Return the names of all functions and classes that operations call."""
    return sorted({part for name, operation in ALL.items() for part in operation.call.names(name)})


class CaseFitter:
    """Function from a case to the part of it that a candidate's interface can say."""

    def __init__(
        self,
        candidate: Candidate,
        forms: Mapping[str, str],
        outputs_of: Callable[[Case], Mapping[Place, Any]],
    ) -> None:
        """`forms` are the earlier forms of the candidate's functions (`earlier_form`).

        `outputs_of` calls the candidate once, and returns nothing if that does not end well.
        """
        self._candidate = candidate
        self._forms = forms
        self._outputs_of = outputs_of
        self._interfaces: dict[str, str] = {}
        """Interface whose cases each operation gets."""

    def __call__(self, case: Case) -> Case:
        """Return the case without what the candidate's interface cannot say.

        An interface that is not declared, or "any", is the weakest one that the candidate's
        function may have.
        """
        name, candidate = case.operation, self._candidate
        if name not in self._interfaces:
            weaker = ""
            if candidate.interface == DEFAULT or not candidate.declared:
                weaker = weakest_interface(name, self._forms.get(name, ""), self._outputs_of)
            self._interfaces[name] = weaker or candidate.interface
        interface = INTERFACES.get(self._interfaces[name])
        reduced = interface.fit(case) if interface else case
        if reduced is case or not reduced.fault or fault_of(ALL[name], reduced).applies(reduced):
            return reduced
        return msgspec.structs.replace(reduced, fault="")


def interface_line(candidate: Candidate) -> str:
    """Return the candidate's interface and why it is that one, "" for one that has all."""
    if not candidate.interface:
        return ""
    return f"interface {candidate.interface} for {candidate.name}: {candidate.interface_reason}"
