"""A V0 builder that writes a graph's block tables into the runner's array (erratum E15)."""

import torch

from attnproof import reference


class CommonMetadataBuilder(reference.CommonMetadataBuilder):
    def build(self, seq_lens, query_lens, cuda_graph_pad_size, batch_size):
        made = super().build(seq_lens, query_lens, cuda_graph_pad_size, batch_size)
        if cuda_graph_pad_size != -1:
            tables = self.runner.graph_block_tables[:batch_size]
            for row, blocks in enumerate(self.block_tables):
                tables[row, : len(blocks)] = blocks
            made.block_tables = torch.from_numpy(tables)
        return made
