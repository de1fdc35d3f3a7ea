"""Measure the speed of the device path on this GPU against the installed peers.

    python tools/gpu_figures.py [--out figures.json] [--seconds 120] [--smoke]

Copy bandwidth is measured first. Every figure is a ratio of medians with a 95 % bootstrap
interval. The compared functions are timed alternately by CUDA events, on inputs that do
not fit the cache, after their results were checked. Exit code 1 if a result is wrong, 3
without a GPU. `--smoke` runs tiny sizes on any device, to test the code.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnproof.optimized import (
    build_slot_mapping,
    decode_attention,
    paged_attention,
    reshape_and_cache_flash,
)
from attnproof.optimized.host.paged_attention import Attention
from attnproof.optimized.xformers_decode import xformers_attends

HEADS, KV_HEADS, HEAD_SIZE, PAGE = 32, 8, 128, 16
"""Shape of Llama-3.1-8B, and the block size of engines."""
TOLERANCE = 1.6e-2
"""Relative Frobenius error that SPEC.md section 8 allows for bfloat16."""
Run = Callable[[int], object]
"""Function that does the work once; its argument selects the inputs."""


@dataclass
class Sizes:
    """Sizes of the measurements: by default those of a GPU."""

    copy_bytes: int = 4 << 30
    decodes: int = 64
    context: int = 8192
    prefills: tuple[int, ...] = (2048, 4096, 8192, 16384)
    tokens: int = 100_000
    dtype: torch.dtype = torch.bfloat16
    least_rounds: int = 20

    @classmethod
    def smoke(cls) -> Sizes:
        """Return sizes small enough for a test of the code."""
        # float16, as Triton's interpreter multiplies no bfloat16.
        return cls(1 << 16, 2, 40, (24,), 50, torch.float16, 2)


@dataclass
class Bench:
    """Settings and results of the measurements."""

    device: str
    sizes: Sizes
    seconds: float
    """Time limit of one figure, in seconds."""
    copy_rate: float = 0.0
    """Rate of a large copy, in bytes read and written per second."""
    figures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def l2_bytes(self) -> int:
        """Size of the last cache in bytes; rotating inputs must not fit it."""
        if self.device != "cuda":
            return 1 << 12
        return int(torch.cuda.get_device_properties(0).L2_cache_size)

    def copies(self, nbytes: int) -> int:
        """Return the number of input sets of `nbytes` that together do not fit the cache."""
        return max(2, min(256, 1 + 3 * self.l2_bytes // max(1, nbytes)))


def interleaved(bench: Bench, runs: list[Run]) -> list[np.ndarray]:
    """Return the seconds of each run, timed alternately so that all see the same GPU clocks."""
    for run in runs:  # compiles
        run(0)
        run(1)
    _wait(bench)
    taken: list[list[float]] = [[] for _ in runs]
    end = time.monotonic() + bench.seconds
    number = 0
    while time.monotonic() < end or number < bench.sizes.least_rounds:
        if number >= 400:
            break
        for run, seconds in zip(runs, taken, strict=True):
            seconds.append(_timed(bench, run, number))
        number += 1
    return [np.array(seconds) for seconds in taken]


def _timed(bench: Bench, run: Run, number: int) -> float:
    if bench.device != "cuda":
        begin = time.perf_counter()
        run(number)
        return time.perf_counter() - begin
    # About a millisecond of device work first: otherwise the host's checks would be timed too.
    torch.cuda._sleep(2_000_000)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run(number)
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def _wait(bench: Bench) -> None:
    if bench.device == "cuda":
        torch.cuda.synchronize()


def ratio(top: np.ndarray, bottom: np.ndarray) -> dict[str, float]:
    """Return the ratio of the medians and its 95 % interval from 2,000 bootstrap samples."""
    random = np.random.default_rng(0)

    def medians(values: np.ndarray) -> np.ndarray:
        drawn = random.integers(0, len(values), (2000, len(values)))
        return np.asarray(np.median(values[drawn], axis=1))

    low, high = np.quantile(medians(top) / medians(bottom), [0.025, 0.975])
    value = float(np.median(top) / np.median(bottom))
    return {"value": value, "low": float(low), "high": float(high)}


def add(bench: Bench, name: str, unit: str, numbers: dict[str, float], **facts: Any) -> None:
    """Record a figure and print it."""
    bench.figures.append({"name": name, "unit": unit, **numbers, **facts})
    print(
        f"{name}: {numbers['value']:.3g} [{numbers['low']:.3g}, {numbers['high']:.3g}] {unit}",
        flush=True,
    )


def measure_copy(bench: Bench) -> None:
    """Measure the bandwidth of a device-to-device copy larger than any cache."""
    half = bench.sizes.copy_bytes // 2
    source = torch.empty(half, dtype=torch.uint8, device=bench.device).fill_(1)
    target = torch.empty_like(source)
    [seconds] = interleaved(bench, [lambda _: target.copy_(source)])
    bench.copy_rate = 2 * half / float(np.median(seconds))
    numbers = ratio(np.full(1, 2 * half / 1e9), seconds)
    add(bench, "copy", "GB/s", numbers, bytes=2 * half, rounds=len(seconds))


def of_copy(bench: Bench, name: str, nbytes: int, seconds: np.ndarray, **facts: Any) -> None:
    """Record a figure as a fraction of the copy bandwidth."""
    numbers = ratio(np.full(1, nbytes / bench.copy_rate), seconds)
    more = {"bytes": nbytes, "microseconds": float(np.median(seconds)) * 1e6}
    add(bench, name, "of copy bandwidth", numbers, **more, rounds=len(seconds), **facts)


class Paged:
    """Sequences of equal length in a cache with shuffled blocks."""

    def __init__(self, bench: Bench, rows: int, length: int, seed: int) -> None:
        width = -(-length // PAGE)
        generator = torch.Generator().manual_seed(seed)
        shape = (2, rows * width, PAGE, KV_HEADS, HEAD_SIZE)
        self.cache = torch.empty(shape, dtype=bench.sizes.dtype, device=bench.device).normal_()
        ids = torch.randperm(rows * width, generator=generator).int()
        self.table = ids.view(rows, width).to(bench.device)
        self.lengths = torch.full((rows,), length, dtype=torch.int32, device=bench.device)
        self.length = length

    def unpaged(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of one sequence, (Hkv, length, D) each."""
        pages = self.cache[:, self.table[row].long()]
        keys, values = pages.flatten(1, 2)[:, : self.length].transpose(1, 2)
        return keys, values


def require_right(
    name: str, query: torch.Tensor, held: tuple[torch.Tensor, torch.Tensor], got: torch.Tensor
) -> None:
    """Compare attention of a sequence's last queries, (q, Hq, D), with float64 (ValueError)."""
    keys, values = (part.double().repeat_interleave(HEADS // KV_HEADS, 0) for part in held)
    queries = query.double().transpose(0, 1)
    rows, length = queries.shape[1], keys.shape[1]
    position = torch.arange(length - rows, length, device=query.device)
    seen = position[:, None] >= torch.arange(length, device=query.device)
    expected = F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
    error = (got.double().transpose(0, 1) - expected).norm() / expected.norm()
    if not float(error) <= TOLERANCE:  # NaN too
        raise ValueError(f"{name} is wrong: relative error {float(error):.2e}")


def measure_decode(bench: Bench) -> None:
    """Measure decodes with a long context, bound by reading the keys and values once."""
    rows, length, dtype = bench.sizes.decodes, bench.sizes.context, bench.sizes.dtype
    steps = [Paged(bench, rows, length, seed) for seed in range(2)]
    shape = (rows, HEADS, HEAD_SIZE)
    query = torch.empty(shape, dtype=dtype, device=bench.device).normal_()
    out = torch.empty_like(query)

    def run(number: int, mask: Any = None) -> None:
        step = steps[number % 2]
        decode_attention(
            query,
            *step.cache.unbind(),
            step.lengths,
            step.table,
            HEAD_SIZE**-0.5,
            max_seq_len=length,
            attn_bias=mask,
            out=out,
        )

    nbytes = steps[0].cache.numel() * steps[0].cache.element_size() + 2 * query.nbytes
    ways: dict[str, Run] = {"the paged kernel": run}
    masks = [_mask(step) for step in steps]
    inputs = (query, *steps[0].cache.unbind(), None, steps[0].lengths, steps[0].table)
    call = Attention(*inputs, HEAD_SIZE**-0.5, 1, length, None, None, None, None, out)
    if xformers_attends(call, masks[0]):
        ways["xformers' split-k"] = lambda number: run(number, masks[number % 2])
    for name, way in ways.items():
        for number in range(2):
            way(number)
            last = rows - 1
            require_right(name, query[last:], steps[number].unpaged(last), out[last:])
    taken = interleaved(bench, list(ways.values()))
    for name, seconds in zip(ways, taken, strict=True):
        of_copy(bench, f"decode by {name}", nbytes, seconds, batch=rows, context=length)
    if len(taken) == 2:
        numbers = ratio(taken[1], taken[0])
        add(bench, "decode: speed of the paged kernel", "times xformers' split-k", numbers)


def _mask(step: Paged) -> Any:
    """Return the backend's xformers mask of the decodes, None without xformers."""
    from types import SimpleNamespace

    from attnproof.optimized import XFormersAttentionBackend
    from attnproof.reference import CommonAttentionMetadata

    rows, device = step.table.shape[0], step.table.device
    starts = torch.arange(rows + 1, dtype=torch.int32)
    lengths = torch.full((rows,), step.length, dtype=torch.int32)
    metadata = CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=step.lengths,
        seq_lens_cpu=lengths,
        num_computed_tokens_cpu=lengths - 1,
        num_reqs=rows,
        num_actual_tokens=rows,
        max_query_len=1,
        max_seq_len=step.length,
        block_table_tensor=step.table,
        slot_mapping=torch.full((rows,), -1, dtype=torch.int64, device=device),
    )
    config = SimpleNamespace(speculative_config=None)
    spec = SimpleNamespace(block_size=PAGE)
    builder = XFormersAttentionBackend.get_builder_cls()(spec, ["layer.0"], config, device)
    return builder.build(0, metadata).attn_bias


def measure_prefills(bench: Bench) -> None:
    """Measure prefills of one prompt against PyTorch's attention on contiguous keys."""
    for tokens in bench.sizes.prefills:
        shape = (tokens, HEADS, HEAD_SIZE)
        query = torch.empty(shape, dtype=bench.sizes.dtype, device=bench.device).normal_()
        out = torch.empty_like(query)
        sets = min(8, bench.copies(query.nbytes))
        steps = [Paged(bench, 1, tokens, seed) for seed in range(sets)]
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=bench.device)
        queries = [query, *(torch.randn_like(query) for _ in range(sets - 1))]
        flat = [q.transpose(0, 1)[None].contiguous() for q in queries]
        held = [[part[None].contiguous() for part in step.unpaged(0)] for step in steps]

        def ours(number: int, tensors: Any = (queries, steps, starts, out, tokens)) -> None:
            queries, steps, starts, out, tokens = tensors
            step = steps[number % len(steps)]
            paged_attention(
                queries[number % len(steps)],
                *step.cache.unbind(),
                starts,
                step.lengths,
                step.table,
                HEAD_SIZE**-0.5,
                max_query_len=tokens,
                max_seq_len=tokens,
                out=out,
            )

        def theirs(number: int, tensors: Any = (flat, held)) -> torch.Tensor:
            flat, held = tensors
            which = number % len(held)
            more = {"is_causal": True, "enable_gqa": True}
            return F.scaled_dot_product_attention(flat[which], *held[which], **more)

        ours(0)
        last = min(256, tokens)
        require_right(f"prefill of {tokens}", query[-last:], steps[0].unpaged(0), out[-last:])
        peer = theirs(0)[0].transpose(0, 1)
        require_right("PyTorch's attention", query[-last:], steps[0].unpaged(0), peer[-last:])
        taken = interleaved(bench, [ours, theirs])
        facts = {"tokens": tokens, "microseconds": float(np.median(taken[0])) * 1e6}
        work = 2 * HEADS * HEAD_SIZE * tokens * (tokens + 1)  # two products of the triangle
        facts["tflops"] = work / float(np.median(taken[0])) / 1e12
        name = f"prefill of {tokens}: speed"
        add(bench, name, "times scaled_dot_product_attention", ratio(*taken[::-1]), **facts)


def measure_writes(bench: Bench) -> None:
    """Measure cache write and slot mapping of an engine step with many tokens."""
    tokens, dtype, device = bench.sizes.tokens, bench.sizes.dtype, bench.device
    rows = max(1, tokens // 400)
    blocks = -(-tokens // PAGE) + rows
    cache = torch.zeros((2, blocks, PAGE, KV_HEADS, HEAD_SIZE), dtype=dtype, device=device)
    scale = torch.ones(1, device=device)
    new = torch.empty((2, tokens, KV_HEADS, HEAD_SIZE), dtype=dtype, device=device).normal_()
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(blocks * PAGE, generator=generator)[:tokens].sort().values.to(device)

    def write(_number: int) -> None:
        reshape_and_cache_flash(*new, *cache.unbind(), slots, "auto", scale, scale)

    write(0)
    if not torch.equal(cache.flatten(1, 2)[:, slots], new):
        raise ValueError("the cache write is wrong")
    [seconds] = interleaved(bench, [write])
    of_copy(bench, "cache write", 2 * new.nbytes + slots.nbytes, seconds, tokens=tokens)

    starts = torch.linspace(0, tokens, rows + 1).int()
    width = -(-(int(starts.diff().max()) + 5) // PAGE)
    table = torch.randperm(rows * width, generator=generator).int().view(rows, width)
    computed = torch.full((rows,), 5, dtype=torch.int32)
    expected = _slots(starts, table)
    sets = bench.copies(8 * tokens)
    there = [[part.to(device) for part in (starts, computed, table)] for _ in range(sets)]
    outs = [torch.empty(tokens, dtype=torch.int64, device=device) for _ in range(sets)]

    def map_slots(number: int) -> None:
        build_slot_mapping(*there[number % sets], PAGE, out=outs[number % sets])

    map_slots(0)
    if not torch.equal(outs[0].cpu(), expected):
        raise ValueError("the slot mapping is wrong")
    nbytes = expected.nbytes + sum(part.nbytes for part in there[0])
    words = [torch.zeros(nbytes // 16, dtype=torch.int64, device=device) for _ in range(2 * sets)]

    def copy(number: int) -> None:
        words[2 * (number % sets)].copy_(words[2 * (number % sets) + 1])

    def both(number: int) -> None:
        map_slots(number)
        write(number)

    mapped, copied, together = interleaved(bench, [map_slots, copy, both])
    of_copy(bench, "slot mapping", nbytes, mapped, tokens=tokens)
    add(bench, "slot mapping: speed", "times a copy of as many bytes", ratio(copied, mapped))
    more = nbytes + 2 * new.nbytes + slots.nbytes
    of_copy(bench, "slot mapping and cache write", more, together, tokens=tokens)


def _slots(starts: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the slots of tokens whose requests have 5 computed tokens each."""
    row = torch.repeat_interleave(torch.arange(len(table)), starts.diff().long())
    position = torch.arange(len(row)) - starts[row] + 5
    return table[row, position // PAGE].long() * PAGE + position % PAGE


def main() -> int:
    """Run the command line and return the exit code."""
    options = _options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.smoke:
        print("no CUDA device: nothing was measured")
        return 3
    sizes = Sizes.smoke() if options.smoke else Sizes()
    parts = [measure_copy, measure_decode, measure_prefills, measure_writes]
    figures = 4 + len(sizes.prefills)  # functions timed alternately count once
    bench = Bench(device, sizes, options.seconds / figures)
    wrong = []
    for part in parts:
        try:
            part(bench)
        except Exception as error:  # continue with the other figures
            wrong.append(f"{part.__name__}: {type(error).__name__}: {error}"[:500])
            print(wrong[-1], flush=True)
            if part is measure_copy:
                break
        if device == "cuda":
            torch.cuda.empty_cache()
    record = {
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
        "smoke": options.smoke,
        "figures": bench.figures,
        "wrong": wrong,
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for all figures together")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any device")
    options = parser.parse_args()
    if not options.seconds >= 0:
        parser.error(f"argument --seconds: {options.seconds:g} is below 0")
    if options.out is not None and not options.out.parent.is_dir():
        parser.error(f"argument --out: there is no folder {options.out.parent}")
    return options


if __name__ == "__main__":
    sys.exit(main())
