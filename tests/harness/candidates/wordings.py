"""A candidate whose results depend on the order of a dict, or on the objects of shared memory."""

from attnproof import reference


def compute_mm_prefix_range_tensor(mm_prefix_range, *arguments):
    rows = [*(mm_prefix_range or ())]
    if rows != sorted(rows):  # as if the rows of a dict always ascended
        mm_prefix_range = {rows[0]: mm_prefix_range[rows[0]]}
    return reference.compute_mm_prefix_range_tensor(mm_prefix_range, *arguments)


def eagle_step_update_slot_mapping_and_metadata(positions_1d, *arguments, **keywords):
    out = keywords.get("out_clamped_positions", (*arguments, *[None] * 9)[4])
    before = positions_1d.clone()
    result = reference.eagle_step_update_slot_mapping_and_metadata(
        positions_1d, *arguments, **keywords
    )
    if out is not positions_1d and out.data_ptr() == positions_1d.data_ptr():
        positions_1d.copy_(before)
    return result
