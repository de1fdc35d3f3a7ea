"""Measure the resources of every kernel without a GPU: registers, stack, shared memory, code.

    python tools/kernel_resources.py           compile, and compare with the committed table
    python tools/kernel_resources.py --write   compile, and write the table
    python tools/kernel_resources.py --fill 90 compile for cards of this capability only, into
                                               Triton's cache: a process that launches a kernel
                                               of this list then finds it there

Compiles the launches of `attnproof.optimized.kernels.launches` ahead of time for each target
and reads their resources from the machine code. Exit codes: 0 no worse than the table, or
the table was written; 1 worse, or the launches differ from those of the table; 3 the table
was made with another version of Triton and cannot be compared.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import product, repeat
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "optimized" / "kernel_resources.json"
TARGETS = {
    "gfx942": ("hip", "gfx942", 64),
    "sm_100": ("cuda", 100, 32),
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
}
MAIN_TARGET = "sm_90"
"""Target for which every launch is compiled."""
REGISTER_UNIT = 8
"""Registers are allocated in units of 8, on NVIDIA and on gfx942: smaller changes are free."""
CODE_SLACK = 1.1
"""Allowed growth of code: a new bounds check is no regression, an unrolled loop is."""
PROCESSORS = {"80": 108, "90": 132, "100": 148, "gfx942": 304}
"""Multiprocessors of an A100, an H100, a B200 and an MI300X."""
Cost = dict[str, int]
Row = tuple[str, str, str]
"""Kernel, launch, target."""


class _NoDriver:
    """Stand-in for Triton's driver that reports the target to compile for."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> str:
        return str(self._target)

    def get_current_stream(self, _device: str) -> int:
        return 0


def recorded(launch: Any, target: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return the specialised source and the options of each kernel of a launch, by name."""
    import triton
    from triton.compiler import make_backend
    from triton.runtime import driver

    usual = json.loads(json.dumps(make_backend(target).parse_options({}).__dict__, default=str))
    by_kernel: dict[str, tuple[Any, dict[str, Any]]] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:  # noqa: A002
        constants, attributes = compile["constants"], compile["configs"][0]
        source = triton.compiler.ASTSource(
            fn.jit_function, compile["signature"], constants, attributes
        )
        requested = json.loads(compile["specialization_data"])["options"]
        options = {name: value for name, value in requested.items() if value != usual[name]}
        assert fn.name not in by_kernel, f"one launch, two forms of {fn.name}"
        by_kernel[fn.name] = (source, options)
        return True  # neither compile nor launch

    before = driver._active
    driver.set_active(_NoDriver(target))
    triton.knobs.runtime.jit_cache_hook = note
    try:
        with _machine(target):
            launch()
    finally:
        triton.knobs.runtime.jit_cache_hook = None
        driver._active = before  # there is no public way to undo set_active without a GPU
    return by_kernel


@contextmanager
def _machine(target: Any) -> Iterator[None]:
    """Return a context in which torch reports the properties of the target's device."""
    from attnproof.optimized.kernels import paged_attention_tiles as tiles

    hip = target.backend == "hip"
    capability = (9, 4) if hip else divmod(target.arch, 10)
    properties = SimpleNamespace(multi_processor_count=PROCESSORS.get(str(target.arch), 132))
    with (
        patch.object(torch.version, "hip", "ahead of time" if hip else None),
        patch.object(torch.cuda, "get_device_capability", lambda _=None: capability),
        patch.object(torch.cuda, "get_device_properties", lambda _=None: properties),
    ):
        for cached in (tiles.target_of, tiles._processors):
            cached.cache_clear()
        yield
    for cached in (tiles.target_of, tiles._processors):
        cached.cache_clear()


def compiled(name: str, target_name: str) -> dict[Row, Cost]:
    """Return the resources of the kernels of one launch on one target.

    Raise the errors of Triton's compiler.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    from attnproof.optimized.kernels.launches import launches

    target = GPUTarget(*TARGETS[target_name])
    costs = {}
    for kernel, (source, options) in recorded(launches()[name], target).items():
        binary = triton.compile(source, target=target, options=options)
        measured = _amd(binary.asm) if target.backend == "hip" else _nvidia(binary.asm)
        costs[kernel, name, target_name] = measured | {"shared_bytes": binary.metadata.shared}
    return costs


def fill(jobs: int, capability: int, only: str = "") -> tuple[int, list[str]]:
    """Compile launches whose names contain `only` into Triton's cache, each kernel once.

    Return the number of launches that compiled, and the errors. `capability` is that of the
    card, such as 90.
    """
    from attnproof.optimized.kernels.launches import launches

    names = [name for name in launches() if only in name]
    context = multiprocessing.get_context("fork")
    problems = []
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for number, problem in enumerate(pool.map(_fill, names, repeat(capability)), 1):
            problems += [problem] if problem else []
            print(f"{number} of {len(names)} launches compiled", flush=True)  # also if interrupted
    return len(names) - len(problems), problems


def _fill(name: str, capability: int) -> str:
    """Compile one launch; return its error, "" without one."""
    import triton
    from triton.backends.compiler import GPUTarget

    from attnproof.optimized.kernels.launches import launches

    target = GPUTarget("cuda", capability, 32)
    try:
        for source, options in recorded(launches()[name], target).values():
            triton.compile(source, target=target, options=options)
    except Exception as error:  # error classes differ between versions of Triton
        return _problem(name, f"sm_{capability}", error)
    return ""


def _nvidia(asm: dict[str, Any]) -> Cost:
    """Return the resources of a cubin; spilled registers are part of the stack frame."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack = (max(map(int, re.findall(rf"{n}:(\d+)", text))) for n in ("REG", "STACK"))
    return {
        "code_bytes": _code_bytes(asm["cubin"]),
        "registers": registers,
        "stack_bytes": stack,
    }


def _amd(asm: dict[str, Any]) -> Cost:
    def number(name: str) -> int:
        return max(map(int, re.findall(rf"\.{name}:\s+(\d+)", asm["amdgcn"])))

    return {
        "code_bytes": _code_bytes(asm["hsaco"]),
        "registers": number("vgpr_count"),
        "scalar_registers": number("sgpr_count"),
        "spilled_registers": number("vgpr_spill_count") + number("sgpr_spill_count"),
        "stack_bytes": number("private_segment_fixed_size"),
    }


def _code_bytes(elf: bytes) -> int:
    """Return the size of the executable sections of a 64-bit ELF file, in bytes."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = (struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count))
    executable = 0x4
    return sum(length for _, _, flags, _, _, length in sections if flags & executable)


def collect(jobs: int, targets: list[str]) -> tuple[dict[Row, Cost], list[str]]:
    """Return the resources of all launches on the targets, and the compilation errors."""
    from attnproof.optimized.kernels.launches import ON_ONE_TARGET, launches

    pairs = product(launches(), targets)
    work = [(name, on) for name, on in pairs if on == MAIN_TARGET or name not in ON_ONE_TARGET]
    costs: dict[Row, Cost] = {}
    problems = []
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for outcome in pool.map(_compile_or_describe, *zip(*work, strict=True), chunksize=4):
            if isinstance(outcome, str):
                problems.append(outcome)
            else:
                costs |= outcome
    return costs, problems


def _compile_or_describe(name: str, target: str) -> dict[Row, Cost] | str:
    try:
        return compiled(name, target)
    except Exception as error:  # error classes differ between versions of Triton
        return _problem(name, target, error)


def _problem(name: str, target: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{name} on {target} does not compile: {type(error).__name__}: {text[-600:]}"


def not_launched(costs: dict[Row, Cost]) -> set[str]:
    """Return a line for each kernel of `attnproof.optimized.kernels` without a launch."""
    from triton import JITFunction

    from attnproof.optimized import kernels

    modules = iter_modules(kernels.__path__, f"{kernels.__name__}.")
    written = {
        name
        for module in modules
        for name, thing in vars(importlib.import_module(module.name)).items()
        if isinstance(thing, JITFunction) and name.endswith("_kernel")
    }
    missing = written - {kernel for kernel, _, _ in costs}
    return {f"{name} has no launch in optimized/kernels/launches.py" for name in missing}


def compare(before: dict[Row, Cost], now: dict[Row, Cost]) -> list[str]:
    """Return a line for each resource above the table, and for each row in only one of both."""
    problems = [f"{_row(row)}: in the table and never launched" for row in before.keys() - now]
    for row, cost in now.items():
        if row not in before:
            problems.append(f"{_row(row)}: not in the table")
            continue
        for what, value in cost.items():
            old = before[row].get(what, 0)
            if value > _allowed(what, old):
                problems.append(f"{_row(row)}: {what} {value}, was {old}")
    return sorted(problems)


def _allowed(what: str, old: int) -> float:
    if what in ("registers", "scalar_registers"):
        return -(-old // REGISTER_UNIT) * REGISTER_UNIT
    return old * CODE_SLACK if what == "code_bytes" else old


def _row(row: Row) -> str:
    return "{} ({}) on {}".format(*row)


def read_table(path: Path = TABLE) -> tuple[str, dict[Row, Cost]]:
    """Return the version of Triton with which the table was made, and its rows."""
    table = json.loads(path.read_text(encoding="utf-8"))
    return table["triton"], {
        (kernel, launch, target): cost
        for kernel, launches in table["kernels"].items()
        for launch, targets in launches.items()
        for target, cost in targets.items()
    }


def write_table(version: str, costs: dict[Row, Cost], path: Path = TABLE) -> None:
    """Write one sorted line per kernel, launch and target, for readable diffs."""
    tree: dict[str, dict[str, dict[str, Cost]]] = {}
    for kernel, launch, target in sorted(costs):
        row = tree.setdefault(kernel, {}).setdefault(launch, {})
        row[target] = dict(sorted(costs[kernel, launch, target].items()))
    text = json.dumps({"kernels": tree, "triton": version}, indent=1)
    text = re.sub(r"\{\s+(\"code_bytes[^}]*?)\s+\}", r"{\1}", text)
    text = re.sub(r"(\d,)\s+", r"\1 ", text)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Run the command line and return the exit code."""
    os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported
    sys.path.insert(0, str(ROOT))
    options = _options()
    import triton

    if options.fill:
        number, problems = fill(options.jobs, options.fill, options.only)
        print("\n".join([*problems, f"{number} launches compiled, {len(problems)} problems"]))
        return 1 if problems else 0
    if not options.write:
        version, before = read_table()
        if version != triton.__version__:
            print(f"the table was made with Triton {version}, installed is {triton.__version__}")
            return 3
    costs, problems = collect(options.jobs, list(TARGETS))
    if options.write and not problems:
        write_table(triton.__version__, costs)
    elif not options.write:
        problems += compare(before, costs)
    problems += not_launched(costs)
    print("\n".join([*problems, f"{len(costs)} compilations, {len(problems)} problems"]))
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--fill", type=int, help="capability of a card, such as 90")
    parser.add_argument("--only", default="", help="with --fill: part of the names of launches")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"argument --jobs: {options.jobs} is below 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
