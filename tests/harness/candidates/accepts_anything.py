"""Correct on good input; accepts malformed input."""

from attnproof import reference


def compute_slot_mapping_start_idx(is_prompt, query_len, context_len, sliding_window):
    try:
        return reference.compute_slot_mapping_start_idx(
            is_prompt, query_len, context_len, sliding_window
        )
    except (ValueError, TypeError):
        return 0
