"""`attnproof bench`: verify the workloads, time them beside a peer, compare with a baseline."""

from __future__ import annotations

from importlib.util import find_spec

from attnproof.harness.running.candidates import SDPA
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.parent.environment import gpu_name
from attnproof.harness.verbs.checks import check_timing
from attnproof.harness.verbs.options import BenchOptions, VerifyOptions
from attnproof.harness.verbs.verify import verify

PEER, OWN = "vllm", "optimized"
_ATTENTION = ("paged_attention", "decode_attention")
"""Operations whose peer is torch's attention."""
_EXAMPLES = 10
"""Cases drawn for each operation; `verify --bench` draws as many as `verify`."""


def bench(options: BenchOptions, *, command: str = "attnproof bench") -> int:
    """Verify, time and report; return the exit code. Raise UsageError before anything runs."""
    check_timing(options)
    if options.device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device is {options.device!r}: bench times on cpu and cuda only, "
            "use --device auto, cpu or cuda"
        )
    peer = options.against or default_peer(options.ops)
    own = [name for name in options.candidates or [OWN] if name != peer]
    if options.against and not own:
        raise UsageError(f"--against {peer}: no other candidate to time; name one with --candidate")
    device = options.device
    if device == "auto":
        device = "cpu" if gpu_name() is None else "cuda"
    verified = VerifyOptions(
        ops=options.ops,
        candidates=[*own, peer],
        definitions=options.definitions,
        stub=options.stub,
        device=device,
        examples=_EXAMPLES,
        steps=0,
        seed=options.seed,
        vary=False,
        out=options.out,
        jobs=options.jobs,
        contract=options.contract,
        interface=options.interface,
        deviations=options.deviations,
        fail_on=options.fail_on,
        timeout_s=options.timeout_s,
        memory_gib=options.memory_gib,
        remember=False,
    )
    return verify(verified, command=command, timing=options, minimise_known=False)


def default_peer(ops: str = "") -> str:
    """Return torch's attention for attention alone, else `vllm` if installed, else `reference`."""
    if set(ops.split(",")) <= set(_ATTENTION):
        return SDPA.name
    return PEER if find_spec(PEER) else "reference"
