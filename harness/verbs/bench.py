"""`attnproof bench`: verify what will be timed, time it beside a peer, compare with a baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.parent.environment import gpu_name
from attnproof.harness.verbs import verify
from attnproof.harness.verbs.timekeeping import BenchOptions

PEER, OWN = "vllm", "optimized"
_EXAMPLES = 10
"""Drawn for each operation: whoever wants more runs `verify --bench`."""
_MOST_SECONDS = 36_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line of `bench`, unresolved."""

    ops: str = ""
    candidates: list[str] = field(default_factory=list)
    against: str = ""
    device: str = "auto"
    out: Path = Path("reports/latest")
    jobs: int = 0
    timeout_s: float = 20.0
    memory_gib: float = 4.0
    command: str = "attnproof bench"
    bench: BenchOptions = field(default_factory=BenchOptions)


def bench(options: Options) -> int:
    """Verify, time, report; the exit code (UsageError before anything is run)."""
    check(options.bench)
    if options.device == "interpreter":
        raise UsageError("the interpreter has no speed: use --device cpu or cuda")
    peer = options.against or default_peer()
    own = [name for name in options.candidates or [OWN] if name != peer]
    if options.against and not own:
        raise UsageError(f"--against {peer}: nobody else is timed; name somebody with --candidate")
    device = options.device
    if device == "auto":
        device = "cpu" if gpu_name() is None else "cuda"
    return verify.verify(
        verify.Options(
            ops=options.ops,
            candidates=[*own, peer],
            device=device,
            examples=_EXAMPLES,
            steps=0,
            out=options.out,
            jobs=options.jobs,
            timeout_s=options.timeout_s,
            memory_gib=options.memory_gib,
            remember=False,
            minimise_known=False,
            command=options.command,
            bench=options.bench,
        )
    )


def default_peer() -> str:
    """The engine's own functions where it is installed, otherwise the reference."""
    return PEER if find_spec(PEER) else "reference"


def check(options: BenchOptions) -> None:
    """UsageError for a number that makes no sense."""
    if not 0 < options.seconds <= _MOST_SECONDS:
        raise UsageError(
            f"--seconds is {options.seconds:g}, expected more than 0 and at most {_MOST_SECONDS}"
        )
    if not 0 <= options.steps <= 10_000:
        raise UsageError(f"--steps is {options.steps}, expected a number from 0 to 10,000")
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}, expected a number of at least 0")
    if options.traces and not options.steps:
        raise UsageError("--trace with --steps 0 would look at no step of it: drop one of them")
