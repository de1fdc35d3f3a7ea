"""Public bugs that the catalogue of mutations plants: how each of them was noticed."""

from __future__ import annotations

from typing import Final

from attnproof.harness.strength.catalogue import find
from attnproof.harness.strength.pairs.pair import Pair

_SHOWN: Final = {
    "K1": ("vllm-project/vllm#56031", "wrong outputs of micro-batched prefills"),
    "K2": ("vllm-project/vllm#43966", "an assertion in a backend that reads the field"),
    "K5": ("vllm-project/vllm#16209", "IndexError for a prompt one token past a chunk"),
    "K8": ("sgl-project/sglang#38187", "illegal memory access with pages above one token"),
    "K8b": ("sgl-project/sglang#32902", "wrong outputs with pages above one token"),
    "K9": ("vllm-project/vllm#29644", "a captured graph that did not fit its batch"),
    "K10": ("vllm-project/vllm#39936", "TypeError on one branch, after an optimisation"),
    "K11": ("vllm-project/vllm#34187", "an idle data-parallel rank that failed"),
    "K12": ("vllm-project/vllm#48419", "one request answered with another's text"),
    "K13": ("vllm-project/vllm#41841", "decode batches that ran as mixed ones"),
    "K14": ("vllm-project/vllm#53982", "a GPU fault near 53,000 tokens in production"),
    "K15": ("vllm-project/vllm#1486", "a crash with a large cache"),
    "K15b": ("vllm-project/vllm#50427", "a crash, or wrong outputs without an error"),
    "K16": ("vllm-project/vllm#43810", "wrong values in the last block of the cache"),
    "K17": ("vllm-project/vllm#39444", "NaN that spread from block 0 after dummy runs"),
    "K18": ("vllm-project/vllm#39589", "another request's cache was overwritten"),
    "K19": ("vllm-project/vllm#15908", "wrong outputs of long prefills"),
    "K20": ("vllm-project/vllm#28537", "an assertion at start-up"),
    "K21": ("vllm-project/vllm#51738", "a race that a later optimisation exposed"),
    "K22": ("vllm-project/vllm#20838", "an overflow in a later kernel"),
    "K23": ("vllm-project/vllm#25924", "an assertion when the model was loaded"),
    "K25": ("vllm-project/vllm#9026", "by reading: the kernel masked it in the test"),
    "K26": ("vllm-project/vllm#9532", "illegal memory access after a prefix-cache hit"),
    "K29": ("vllm-project/vllm#36580", "another request's cache was overwritten"),
    "K30": ("vllm-project/vllm#51031", "wrong outputs with context parallelism"),
    "K31": ("vllm-project/vllm#57260", "wrong outputs of hybrid models"),
    "K32": ("vllm-project/vllm#37728", "states of requests that were written again"),
    "K33": ("vllm-project/vllm#49757", "wrong outputs after a dummy step"),
    "K34": ("vllm-project/vllm#41623", "a GPU fault with context parallelism"),
    "K35": ("vllm-project/vllm#31540", "low acceptance of drafts"),
    "K36": ("vllm-project/vllm#38556", "an embedding of token -1"),
    "K37": ("vllm-project/vllm#28526", "wrong outputs of long prompts"),
    "K38": ("vllm-project/vllm#51562", "a state that nobody had written"),
    "K39": ("vllm-project/vllm#56417", "low acceptance of drafts"),
    "K40": ("vllm-project/vllm#45100", "wrong outputs under load"),
    "K41": ("vllm-project/vllm#46453", "wrong outputs after a prefix-cache hit"),
    "K42": ("vllm-project/vllm#57605", "drafts that read a stale block"),
}
"""Thread and symptom by number in docs/KNOWN_BUGS.md."""


def pairs() -> list[Pair]:
    """Return a pair for each planted form of each of these bugs."""
    return [
        Pair(
            id=thread,
            operation=mutation.operation,
            part=mutation.part,
            mistake=mutation.description,
            shown_by=shown_by,
            break_=mutation.wrong,
        )
        for number, (thread, shown_by) in _SHOWN.items()
        for mutation in find(number)
    ]
