"""`KVCacheManager` for vLLM, whose class takes a configuration and requests of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm
from typing import Any

import torch

from attnproof.harness.adapters.quiet import quietly
from attnproof.reference import CacheGroup, CacheRequest

_CORE = "vllm.v1.core"
_DELAYED = 5
"""Index of `delay_cache_blocks` among the arguments of `allocate_slots` behind the request."""


class _Modules:
    """Modules of vLLM beside the manager's own."""

    def __init__(self) -> None:
        self.specs = quietly("vllm.v1.kv_cache_interface")
        self.utils = quietly(f"{_CORE}.kv_cache_utils")
        requests = quietly("vllm.v1.request")
        self.request, self.status = requests.Request, requests.RequestStatus
        self.sampling = quietly("vllm.sampling_params").SamplingParams
        self.hash = quietly("vllm.utils.hashing").sha256
        self.utils.init_none_hash(self.hash)
        # Blocks are recorded only for workers that zero them.
        zeroed = {"needs_kv_cache_zeroing": True}
        self.config = type("KVCacheConfig", (self.specs.KVCacheConfig,), zeroed)

    def spec(self, group: CacheGroup) -> Any:
        """Return vLLM's description of a group; heads and dtype decide no block."""
        if group.kind == "mamba":
            state = {"shapes": ((1,),), "dtypes": (torch.float16,), "mamba_cache_mode": "align"}
            return self.specs.MambaSpec(block_size=group.block_size, **state)
        layer: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
        if group.kind == "full":
            return self.specs.FullAttentionSpec(block_size=group.block_size, **layer)
        if group.kind == "chunked":
            layer["attention_chunk_size"] = group.window
            return self.specs.ChunkedLocalAttentionSpec(block_size=group.block_size, **layer)
        layer["sliding_window"] = group.window
        return self.specs.SlidingWindowSpec(block_size=group.block_size, **layer)


def manager_class(cls: type[Any]) -> type[Any]:
    """Return a class with the arguments of ours that calls vLLM's KVCacheManager."""
    modules = _Modules()

    class KVCacheManager:
        """Our requests as vLLM's, and the answers of vLLM's manager unchanged."""

        def __init__(
            self,
            num_blocks: int,
            groups: Sequence[CacheGroup],
            max_model_len: int,
            enable_caching: bool = True,
            num_hash_lookahead_tokens: int = 0,
            watermark: float = 0.0,
            retention_interval: int | None = None,
        ) -> None:
            group_spec = modules.specs.KVCacheGroupSpec
            specs = [
                group_spec([f"layer.{number}"], modules.spec(group), is_eagle_group=group.draft)
                for number, group in enumerate(groups)
            ]
            sizes = [group.block_size for group in groups]
            hashes = {"num_hash_lookahead_tokens": num_hash_lookahead_tokens}
            # Releases before 0.33 have no such hashes, and refuse them by their signatures.
            options = hashes if num_hash_lookahead_tokens else {}
            self._manager = cls(
                modules.config(
                    num_blocks, [], specs, prefix_cache_retention_interval=retention_interval
                ),
                max_model_len=max_model_len,
                scheduler_block_size=lcm(*sizes),
                hash_block_size=gcd(*sizes),
                enable_caching=enable_caching,
                use_eagle=any(group.draft for group in groups) and not options,
                watermark=watermark,
                **options,
            )
            hasher = modules.utils.get_request_block_hasher
            self._hasher = hasher(gcd(*sizes), modules.hash, **options)
            self._requests: dict[str, Any] = {}
            self._num_groups = len(groups)

        @property
        def num_free_blocks(self) -> int:
            """Number of free blocks in vLLM's pool."""
            free: int = self._manager.block_pool.get_num_free_blocks()
            return free

        def get_computed_blocks(self, request: CacheRequest, *bound: int) -> tuple[Any, int]:
            """Return vLLM's hits; its third value is for groups that retain few blocks."""
            blocks, hits, *_ = self._manager.get_computed_blocks(self._request(request), *bound)
            return blocks, hits

        def allocate_slots(self, request: CacheRequest, *args: Any) -> Any:
            """Return the new blocks of vLLM, or None; the watermark is for waiting requests.

            Of a load that the step does not wait for no group is zeroed.
            """
            theirs, status = self._request(request), modules.status
            has_blocks = any(self._manager.get_block_ids(request.request_id))
            theirs.status = status.RUNNING if has_blocks else status.WAITING
            loads_later = len(args) > _DELAYED and args[_DELAYED]
            skipped = tuple(range(self._num_groups)) if loads_later else ()
            return self._manager.allocate_slots(theirs, *args, skip_zeroing_group_ids=skipped)

        def take_new_block_ids(self) -> list[int]:
            """Return the blocks to zero."""
            ids: list[int] = self._manager.take_new_block_ids()
            return ids

        def cache_blocks(self, request: CacheRequest, num_computed_tokens: int) -> None:
            """Cache blocks whose caching was delayed."""
            self._manager.cache_blocks(self._request(request), num_computed_tokens)

        def evict_blocks(self, block_ids: set[int]) -> None:
            """Evict blocks."""
            self._manager.evict_blocks(block_ids)

        def new_step_starts(self) -> None:
            """Begin a step."""
            self._manager.new_step_starts()

        def free(self, request: CacheRequest) -> None:
            """Free the request."""
            self._manager.free(self._request(request))

        def reset_prefix_cache(self) -> bool:
            """Return vLLM's answer."""
            answer: bool = self._manager.reset_prefix_cache()
            return answer

        def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
            """Return the request's blocks."""
            ids: tuple[list[int], ...] = self._manager.get_block_ids(request_id)
            return ids

        def _request(self, request: CacheRequest) -> Any:
            """Return vLLM's request with the tokens that ours has now."""
            name, tokens = request.request_id, request.token_ids
            if self._requests.get(name, (None, None))[0] is not request:
                sampling = modules.sampling(max_tokens=1)
                theirs = modules.request(
                    name, list(tokens), sampling, None, block_hasher=self._hasher
                )
                self._requests[name] = request, theirs
            theirs = self._requests[name][1]
            theirs.append_output_token_ids(tokens[theirs.num_tokens :])
            theirs.num_computed_tokens = request.num_computed_tokens
            theirs.num_in_flight_tokens = request.num_in_flight_tokens
            return theirs

    return KVCacheManager


class BlockHashes:
    """vLLM's hasher of requests, and its view of hashes for larger blocks; hashes are numbered."""

    def __init__(self, hasher: Any) -> None:
        self._hasher = hasher
        self._modules = _Modules()

    def __call__(
        self,
        token_ids: list[list[int]],
        prompt_lens: list[int],
        items: list[list[list[int]]],
        names: list[list[str]],
        hash_block_size: int,
        block_size: int,
        num_hash_lookahead_tokens: int,
    ) -> list[list[int]]:
        """Return the numbers of the hashes in the order in which they first occur."""
        lookahead = [num_hash_lookahead_tokens] if num_hash_lookahead_tokens else []
        hasher = self._hasher(hash_block_size, self._modules.hash, *lookahead)
        numbers: dict[Any, int] = {}
        result = []
        for number, (tokens, prompt) in enumerate(zip(token_ids, prompt_lens, strict=True)):
            features = [self._feature(*item) for item in items[number]]
            theirs = self._request(hasher, tokens[:prompt], features, *names[number])
            for token in tokens[prompt:]:
                theirs.append_output_token_ids(token)
            view = self._modules.utils.BlockHashListWithBlockSize
            hashes = list(view(theirs.block_hashes, hash_block_size, block_size))
            result.append([numbers.setdefault(each, len(numbers)) for each in hashes])
        return result

    def _feature(self, identifier: int, first: int, length: int) -> Any:
        inputs = quietly("vllm.multimodal.inputs")
        place = inputs.PlaceholderRange(offset=first, length=length)
        return inputs.MultiModalFeatureSpec(None, "image", str(identifier), place)

    def _request(
        self, hasher: Any, prompt: list[int], features: list[Any], name: str, path: str, salt: str
    ) -> Any:
        adapter = quietly("vllm.lora.request").LoRARequest(name, 1, path) if name else None
        return self._modules.request(
            "request",
            prompt,
            self._modules.sampling(max_tokens=1),
            None,
            mm_features=features,
            lora_request=adapter,
            cache_salt=salt or None,
            block_hasher=hasher,
        )
