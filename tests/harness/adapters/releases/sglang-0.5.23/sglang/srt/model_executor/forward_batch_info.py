"""Stand-in: no request has a prefix."""

import torch
from sglang.srt.utils import Mixin


class ForwardBatch(Mixin):
    pass


def compute_position_torch(prefix_lens, lens):
    return torch.cat([torch.arange(int(n)) for n in lens]), lens.cumsum(0) - lens
