"""Blocks of requests with one hash (SPEC.md section 16).

Both packages share it: it compares short lists of a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from ..definition.definition import operation
from ..definition.roles import Int, Object

_Tokens = Annotated[list[list[int]], Object()]
_Items = Annotated[list[list[list[int]]], Object()]
_Names = Annotated[list[list[str]], Object()]
_Lengths = Annotated[list[int], Object()]
_Size = Annotated[int, Int(least=1, below=2**16)]
_Lookahead = Annotated[int, Int(least=0, below=2**16)]
_Numbers = Annotated[list[list[int]], Object()]


def _rows_agree(
    token_ids: list[list[int]],
    prompt_lens: list[int],
    items: list[list[list[int]]],
    names: list[list[str]],
    hash_block_size: int,
    block_size: int,
) -> Iterator[tuple[str, bool, str]]:
    rows = len(token_ids)
    for name, lists in (("prompt_lens", prompt_lens), ("items", items), ("names", names)):
        yield name, len(lists) != rows, f"an entry for each of {rows} requests"
    prompts = zip(prompt_lens, token_ids, strict=False)
    yield "prompt_lens", any(n > len(ids) for n, ids in prompts), "at most the request's tokens"
    yield "block_size", block_size % hash_block_size > 0, f"a multiple of {hash_block_size}"


@operation(results=("numbers",), requires=(_rows_agree,))
def match_block_hashes(
    token_ids: _Tokens,
    prompt_lens: _Lengths,
    items: _Items,
    names: _Names,
    hash_block_size: _Size,
    block_size: _Size,
    num_hash_lookahead_tokens: _Lookahead,
) -> _Numbers:
    """Number the blocks of requests by their hashes, in the order in which these first occur.

    `token_ids` are the prompt of `prompt_lens` tokens and those appended one by one. `items` are
    identifier, first token and length of each request's multimodal items in order of tokens,
    `names` its adapter, the adapter's path and its cache salt, "" for none. Blocks have
    `block_size` tokens, a multiple of `hash_block_size`, and are hashed if full and followed by
    `num_hash_lookahead_tokens`. Raise MetadataError for lists that differ in length. SPEC.md
    section 16.
    """
    del prompt_lens  # a hash is the same whenever its tokens become known
    numbers: dict[object, int] = {}
    result = []
    for tokens, own_items, own_names in zip(token_ids, items, names, strict=True):
        row = []
        hashed = len(tokens) - num_hash_lookahead_tokens
        for end in range(hash_block_size, hashed + 1, hash_block_size):
            if end % block_size:
                continue  # a larger block has the hash of its last part
            covered = end + num_hash_lookahead_tokens
            inside = [(item, first) for item, first, _ in own_items if first < covered]
            content = tuple(tokens[:covered]), tuple(inside), tuple(own_names)
            row.append(numbers.setdefault(content, len(numbers)))
        result.append(row)
    return result
