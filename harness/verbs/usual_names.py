"""Usual names of arguments, by meaning, in vLLM, SGLang, FlashInfer and TensorRT-LLM."""

from __future__ import annotations

import re

ROLES = {
    "Offsets": (
        "query_start_loc",
        "qsl",
        "cu_seqlens_q",
        "cu_q_lens",
        "cu_query_lens",
        "qo_indptr",
        "q_indptr",
        "cu_seqlens",
    ),
    "QueryLens": ("query_lens", "q_lens", "num_scheduled_tokens", "extend_lens", "extend_seq_lens"),
    "ComputedLens": (
        "num_computed_tokens",
        "computed_lens",
        "context_lens",
        "prefix_lens",
        "extend_prefix_lens",
    ),
    "SeqLens": (
        "seq_lens",
        "seqused_k",
        "kv_lens",
        "kv_seq_lens",
        "seq_lens_k",
        "seq_lens_kv",
        "cache_seqlens",
        "sequence_lengths",
    ),
    "BlockTable": (
        "block_table",
        "block_tables",
        "block_table_tensor",
        "page_table",
        "page_tables",
    ),
    "Slots": ("slot_mapping", "slots", "out_cache_loc"),
    "Positions": ("positions", "position_ids"),
    "RequestIndices": ("req_indices", "req_ids", "token_to_req_indices", "batch_indices"),
    "TokenStarts": ("extend_start_loc",),
    "PoolRows": ("req_pool_indices",),
    "SlotPool": ("req_to_token",),
    "NumReqs": ("num_reqs", "num_requests", "num_seqs", "batch_size"),
    "NumTokens": ("num_tokens", "num_actual_tokens", "total_num_tokens", "nnz"),
    "BlockSize": ("block_size", "page_size", "tokens_per_block"),
    "MaxQueryLen": ("max_query_len", "max_q_len", "max_seqlen_q"),
    "MaxSeqLen": ("max_seq_len", "max_kv_len", "max_seqlen_k", "max_seqlen_kv"),
}
"""Names of the arguments of a batch by the alias that declares them."""
INTEGERS = ("NumReqs", "NumTokens", "BlockSize", "MaxQueryLen", "MaxSeqLen")
MIRRORS = {
    "Offsets": "query offsets",
    "QueryLens": "query lengths",
    "ComputedLens": "computed lengths",
    "SeqLens": "sequence lengths",
}
"""Roles that often have a copy on the CPU, whose name ends with `_cpu`."""
PAGES = {
    "kv_indptr": "R+1",
    "paged_kv_indptr": "R+1",
    "kv_indices": "E",
    "paged_kv_indices": "E",
    "kv_last_page_len": "R",
    "paged_kv_last_page_len": "R",
}
"""Sizes of arrays without a role, which follow from the sequences and the size of pages."""
NUMBERS = re.compile(r"(num|max|min|n)_\w+|\w+_(size|len|id|count|num)|num|count|n")
PER_ROW = re.compile(
    r"num_(draft|accepted|rejected|sampled|scheduled|computed|cached|prompt|output)_\w+|\w+_(seq)?lens"
)
"""Names of arrays with an entry for each request."""
FLAGS = re.compile(r"(is|use|has|return|enable|with|needs)_\w+|causal")
MASKS = re.compile(r"(\w+_)?mask|is_\w+")
WRITTEN = re.compile(r"out|output|\w+_out|out_\w+")
WITHOUT_VALUES = re.compile(r"(\w+_)?(device|dtype|stream|config)")
"""Names of arguments of which no case has a value."""
