"""Words of every format: counts, durations, states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attnproof.harness.model.call import Free
from attnproof.harness.model.run import Difference, Run, Verdict
from attnproof.harness.model.verdict import WITHOUT_REFERENCE

STATES: tuple[Verdict, ...] = ("PASS", "FAIL", "DEVIATES", "UNVERIFIED", "NOT OFFERED")
STATE_WORDS: dict[str, str] = {
    "PASS": "verified",
    "FAIL": "failed",
    "DEVIATES": "known to deviate",
    "UNVERIFIED": "unverified",
    "NOT OFFERED": "not offered",
}
GLYPHS = {
    "PASS": "✓",
    "FAIL": "✗",
    "INCOMPLETE": "◐",
    "SLOWER": "▼",
    "DEVIATES": "≠",
    "UNVERIFIED": "?",
    "NOT OFFERED": "○",
    "NO CHECK": "-",
}
"""Shape for each state, because colour alone must not distinguish states."""
_MOST_NAMED = 3
"""Candidates that the sentence on a run names."""
NO_REASON = "no reason was given"
DEVICES = {"cpu": "CPU", "interpreter": "Triton interpreter on CPU", "cuda": "CUDA"}


def reason_label(run: Run) -> str:
    """Return the word before the run's reason."""
    # Only a wrong result of a timed call fails an operation whose cases are all right.
    if any(result.verdict == "FAIL" and not result.failed for result in run.operations):
        return "Failed"
    return "Slower" if run.verdict == "SLOWER" else "Incomplete"


def shorten(text: str, limit: int) -> str:
    """Cut `text` to `limit` characters and append the number of missing ones."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def middle_out(text: str, limit: int) -> str:
    """Cut the middle out of `text`, which leaves about `limit` characters of its two ends."""
    if len(text) <= limit:
        return text
    # The end of a log has the error; it gets three quarters.
    head, tail = text[: limit // 4], text[-(limit - limit // 4) :]
    return f"{head}\n[… {len(text) - len(head) - len(tail):,} characters left out …]\n{tail}"


def many(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 case", "2,000 cases"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def capital(text: str) -> str:
    """Make the first letter a capital, and keep the rest as it is."""
    return text[:1].upper() + text[1:]


def listed(items: Sequence[str], limit: int = 0) -> str:
    """Join items to an English list; those beyond `limit` (0 for no limit) are counted."""
    if limit and len(items) > limit:
        items = [*items[:limit], f"{len(items) - limit:,} more"]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def duration(seconds: float) -> str:
    """Return a duration such as "0.4 s", "62 s", "12 min 3 s" or "2 h 5 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def shared_mistake(oracle: str, outputs: Sequence[Difference]) -> str:
    """Return a sentence if the reference has the same mistake, "" otherwise.

    The mistake is shared if all outputs are equal and an oracle without the reference fails.
    Outputs that are free to choose are equal whatever they hold.
    """
    if oracle not in WITHOUT_REFERENCE or not outputs or not all(d.equal for d in outputs):
        return ""
    if any(d.expected_type == Free.__name__ for d in outputs):
        return ""
    return f"the reference has the same mistake: equality passes, the oracle {oracle} fails"


def tally(run: Run) -> dict[Verdict, int]:
    """Return the number of pairs of operation and candidate in each state."""
    counted = Counter(result.verdict for result in run.operations)
    return {state: counted[state] for state in STATES}


def counts_sentence(run: Run) -> str:
    """Return the counts of the run in one sentence."""
    states, counts = tally(run), run.counts
    del states["NOT OFFERED"]
    pairs = sum(states.values())
    if not pairs:
        return f"No operation was checked; the run took {duration(run.seconds)}."
    work = (
        f"{many(counts.checks, 'check')} on {many(counts.cases, 'case')} in {duration(run.seconds)}"
    )
    judged = _judged(run, pairs)
    if states["PASS"] == pairs:
        return f"{judged} judged, {'it agrees' if pairs == 1 else 'all agree'}: {work}."
    parts = [f"{count:,} {STATE_WORDS[state]}" for state, count in states.items() if count]
    return f"Of {judged}, {listed(parts)}; {work}."


def _judged(run: Run, pairs: int) -> str:
    """Return the operations of each candidate: "3 operations of mine and 2 of reference"."""
    by_name = Counter(r.candidate for r in run.operations if r.verdict != "NOT OFFERED")
    if len({result.candidate for result in run.operations}) == 1:
        return many(pairs, "operation")
    if len(by_name) > _MOST_NAMED:
        return many(pairs, "pair of operation and candidate", "pairs of operation and candidate")
    (first, count), *others = by_name.items()
    named = [f"{many(count, 'operation')} of {first}"]
    return listed([*named, *(f"{number:,} of {name}" for name, number in others)])


def device_words(run: Run) -> str:
    """Return the devices on which candidates ran, and the GPU's name."""
    used = list(dict.fromkeys(result.device for result in run.operations))
    words = listed([DEVICES.get(device, device) for device in used]) or "none used"
    return f"{words} ({run.environment.gpu or 'no GPU'})"
