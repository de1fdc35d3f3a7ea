"""Cases of the builders of state-space metadata that are always run."""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.model.case import Case
from attnproof.harness.operations.state_space.state_cases import Row, state_case


def state_boundaries(name: str) -> Iterator[tuple[str, Case]]:
    """Yield cases that are always run."""
    decodes: list[Row] = [(1, 7, False), (1, 4, False), (1, 8, False)]
    drafts: list[Row] = [(3, 7, False), (3, 4, False), (3, 9, False)]
    prefills: list[Row] = [(9, 4, True), (1, 3, True), (5, 0, True), (1, 0, True)]
    for graphs in (False, True):
        of_graph = {"graphs": graphs, "padded_requests": 2}
        words = f"{'full graphs, ' * graphs}"
        yield f"{words}decodes", state_case(name, decodes, 4, **of_graph)
        for most in (64, 1):
            for counts in (True, False):
                yield (
                    f"{words}drafts, {most} requests, counts {counts}",
                    state_case(
                        name,
                        drafts if counts else decodes,
                        4,
                        speculative=2,
                        accepted=[2, 1, 3],
                        counts=counts,
                        max_num_seqs=most,
                        **of_graph,
                    ),
                )
        yield f"{words}decodes and prefills", state_case(name, decodes + prefills, 4, **of_graph)
        for drafting in ([True], [False], [True, False]):
            yield (
                f"{words}drafts {drafting} and prefills",
                state_case(
                    name,
                    drafts + decodes + prefills,
                    4,
                    speculative=2,
                    drafting=drafting,
                    accepted=[2, 1, 3],
                    **of_graph,
                ),
            )
    yield "first chunks of one token (K38)", state_case(name, [(1, 0, True), (1, 4, True)], 4)
    tails: list[Row] = [(3, 5, True), (2, 6, True), (1, 7, True)]
    for drafts_too in (True, False):
        words = f"ends of prompts, drafts {drafts_too}"
        yield words, state_case(name, tails, 4, speculative=2, drafting=[drafts_too])
    short: list[Row] = [(1, 7, False), (2, 0, True), (3, 0, True)]
    yield "prompts no longer than drafts", state_case(name, short, 4, speculative=2)
    for mode in ("align", "none"):
        around: list[Row] = [(1, c, False) for c in range(1, 10)]
        yield f"sequences around blocks, {mode}", state_case(name, around, 4, mode=mode)
    chunks: list[Row] = [(q, c, True) for q in (3, 4, 5, 64, 65) for c in (0, 3, 4, 5)]
    yield "chunks around multiples", state_case(name, chunks, 4, chunk_size=4)
    for alignment in (1, 3):
        exports = {"checkpoint_alignment": alignment, "hash_block_size": 2}
        yield f"exported states, {alignment}", state_case(name, chunks, 4, chunk_size=8, **exports)
    for layer in ("mamba1", "short_conv"):
        yield f"{layer}", state_case(name, drafts + prefills, 4, layer=layer, speculative=2)
    many: list[Row] = [(1, 1 + row % 30, False) for row in range(300)]
    yield "many decodes", state_case(name, many, 4)
