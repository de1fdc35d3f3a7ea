"""A model runner with a persistent batch, which fills its buffers anew in every step."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from vllm.v1.worker.utils import AttentionGroup, Builder, FullAttentionSpec

SIZE, COLUMNS = 4, 64


@dataclass
class CommonAttentionMetadata:
    """Metadata of a batch, with a field that the recorder must not read."""

    query_start_loc: Any
    query_start_loc_cpu: Any
    seq_lens: Any
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Any
    slot_mapping: Any
    causal: bool = True
    positions: Any = None
    is_prefilling: Any = None
    input_ids: Any = None


@dataclass
class SchedulerOutput:
    """What is to run in a step."""

    num_scheduled_tokens: dict
    scheduled_new_reqs: list = field(default_factory=list)
    scheduled_cached_reqs: Any = None
    scheduled_spec_decode_tokens: dict = field(default_factory=dict)
    finished_req_ids: set = field(default_factory=set)


class GPUModelRunner:
    """Runs steps; `groups` KV-cache groups share a builder's metadata but for the table."""

    def __init__(self, requests=3, groups=1, model="FakeForCausalLM"):
        parallel = SimpleNamespace(rank=0, tensor_parallel_size=1, world_size=1)
        self.vllm_config = SimpleNamespace(
            parallel_config=parallel,
            model_config=SimpleNamespace(architecture=model, max_model_len=SIZE * COLUMNS),
        )
        specs = [FullAttentionSpec(SIZE) for _ in range(groups)]
        kept = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=kept)
        self.groups = [
            AttentionGroup(spec, index, metadata_builders=[Builder(spec)])
            for index, spec in enumerate(specs)
        ]
        self.device = "cpu"
        self.computed = torch.zeros(requests, dtype=torch.int32)
        names = [f"secret-request-{index}" for index in range(requests)]
        self.input_batch = SimpleNamespace(
            req_ids=names, num_computed_tokens_cpu=self.computed.numpy()
        )
        rows = torch.arange(requests * COLUMNS, dtype=torch.int32).view(requests, COLUMNS)
        self.tables = [rows + 1 + 1000 * group for group in range(groups)]
        self.starts = torch.zeros(requests + 1, dtype=torch.int32)
        self.slots = [torch.full((4096,), -1, dtype=torch.int64) for _ in range(groups)]
        self.drafting = False

    def scheduled(self, step=0):
        """Return a scheduler output in which every third request has a longer query."""
        names = self.input_batch.req_ids
        tokens = {name: 1 + (step + i) % 3 for i, name in enumerate(names)}
        new = [SimpleNamespace(req_id=n, prompt_token_ids=[777_777]) for n in names]
        return SchedulerOutput(
            tokens,
            new if step == 0 else [],
            SimpleNamespace(req_ids=[], resumed_req_ids=set()),
            {names[0]: [888_888, 888_889]},
        )

    def metadata(self, tokens):
        """Return the metadata of the groups, made in buffers that the next step reuses."""
        lengths = torch.tensor(tokens, dtype=torch.int32)
        torch.cumsum(lengths, 0, out=self.starts[1:])
        rows = torch.repeat_interleave(torch.arange(len(tokens)), lengths)
        total = len(rows)
        positions = torch.arange(total) - self.starts[rows] + self.computed[rows]
        for table, slots in zip(self.tables, self.slots, strict=True):
            slots[:total] = table[rows, positions // SIZE].long() * SIZE + positions % SIZE
        shared = {
            "query_start_loc": self.starts,
            "query_start_loc_cpu": self.starts,
            "seq_lens": self.computed + lengths,
            "num_reqs": len(tokens),
            "num_actual_tokens": total,
            "max_query_len": max(tokens),
            "max_seq_len": int((self.computed + lengths).max()),
            "positions": positions,
            "input_ids": torch.full((total,), 999_999),
        }
        return [
            CommonAttentionMetadata(block_table_tensor=t, slot_mapping=s[:total], **shared)
            for t, s in zip(self.tables, self.slots, strict=True)
        ]

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        """Run a step."""
        return self.run(scheduler_output)

    def run(self, scheduler_output):
        """Make one build, and an update for each further group."""
        tokens = list(scheduler_output.num_scheduled_tokens.values())
        first, *others = self.metadata(tokens)
        made = self.groups[0].build_metadata(first, 0)
        for group, metadata in zip(self.groups[1:], others, strict=True):
            builder = group.get_metadata_builder()
            builder.update_block_table(made, metadata.block_table_tensor, metadata.slot_mapping)
        if self.drafting:
            self.groups[0].build_metadata_for_drafting(first, draft_index=1)
        self.computed += torch.tensor(tokens, dtype=torch.int32)
        if int(self.computed.max()) > SIZE * COLUMNS - 8:
            self.computed.zero_()
        return made

    def _dummy_run(self, tokens):
        self.execute_model(self.scheduled())
        metadata = self.metadata([tokens] * len(self.computed))[0]
        self.groups[0].build_metadata_for_cudagraph_capture(metadata)
        self.computed.zero_()
