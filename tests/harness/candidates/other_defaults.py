"""Functions and a class with other defaults than the reference's."""

from attnproof import reference


def get_dcp_lens(lens, dcp_world_size, dcp_rank, start=None, interleave_size=2):
    return reference.get_dcp_lens(lens, dcp_world_size, dcp_rank, start, interleave_size)


def split_decodes_and_prefills(
    common_attn_metadata,
    decode_threshold=1,
    require_uniform=True,
    treat_short_extends_as_decodes=True,
):
    return reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform, treat_short_extends_as_decodes
    )


def make_local_attention_virtual_batches(attn_chunk_size, common_attn_metadata, block_size=1):
    return reference.make_local_attention_virtual_batches(
        attn_chunk_size, common_attn_metadata, block_size
    )


class BlockTables(reference.BlockTables):
    def __init__(
        self,
        block_sizes,
        max_num_reqs,
        max_num_batched_tokens,
        max_num_blocks_per_group,
        device,
        cp_size=1,
        cp_rank=1,
        cp_interleave=1,
        slot_mapping_enabled=None,
        dcp_sharded=None,
    ):
        super().__init__(
            block_sizes,
            max_num_reqs,
            max_num_batched_tokens,
            max_num_blocks_per_group,
            device,
            cp_size,
            cp_rank,
            cp_interleave,
            slot_mapping_enabled,
            dcp_sharded,
        )
