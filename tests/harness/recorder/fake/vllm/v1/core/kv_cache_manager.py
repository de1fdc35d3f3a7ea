"""Stand-in for vLLM's KVCacheManager: the reference with vLLM's arguments and blocks."""

from types import SimpleNamespace

from attnproof.reference import CacheGroup, CacheRequest
from attnproof.reference import KVCacheManager as _Reference


class FullAttentionSpec:
    """Blocks of full attention."""

    def __init__(self, block_size):
        self.block_size = block_size


class Request(CacheRequest):
    """A request as a scheduler has it."""

    finished = False

    @property
    def all_token_ids(self):
        """Tokens so far."""
        return self.token_ids

    def is_finished(self):
        """True if it has ended."""
        return self.finished


class KVCacheManager:
    """The reference behind vLLM's signatures."""

    reference_class = _Reference

    def __init__(self, kv_cache_config, max_model_len, enable_caching=True):
        groups = [
            CacheGroup("full", group.kv_cache_spec.block_size)
            for group in kv_cache_config.kv_cache_groups
        ]
        sizes = kv_cache_config.num_blocks, groups, max_model_len
        self.ours = self.reference_class(*sizes, enable_caching)
        self.kv_cache_config = kv_cache_config
        self.max_model_len, self.enable_caching = max_model_len, enable_caching
        self.coordinator = SimpleNamespace(eagle_group_ids=set())
        self.block_pool = SimpleNamespace(get_num_free_blocks=lambda: self.ours.num_free_blocks)

    def new_step_starts(self):
        self.ours.new_step_starts()

    def get_computed_blocks(self, request):
        return (*self.ours.get_computed_blocks(request), 0)

    def allocate_slots(
        self, request, num_new_tokens, num_new_computed_tokens=0, new_computed_blocks=None
    ):
        arguments = num_new_tokens, num_new_computed_tokens, new_computed_blocks
        return self.ours.allocate_slots(request, *arguments)

    def get_blocks(self, request_id):
        ids = self.ours.get_block_ids(request_id)
        blocks = [[SimpleNamespace(block_id=b, is_null=not b) for b in table] for table in ids]
        return SimpleNamespace(blocks=blocks)

    def evict_blocks(self, block_ids):
        self.ours.evict_blocks(block_ids)

    def free(self, request):
        self.ours.free(request)

    def reset_prefix_cache(self):
        return self.ours.reset_prefix_cache()
