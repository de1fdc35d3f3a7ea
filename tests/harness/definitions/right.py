"""Right implementations of the operations, vectorised where the references are loops."""

import torch


def positions_of(query_start_loc, seq_lens):
    count = int(query_start_loc[-1])
    rows = torch.repeat_interleave(query_start_loc.diff(), output_size=count)
    return torch.arange(count) + (seq_lens - query_start_loc[1:])[rows]


def fill_slots(query_start_loc, seq_lens, block_table, block_size, out):
    count = int(query_start_loc[-1])
    rows = torch.repeat_interleave(query_start_loc.diff(), output_size=count)
    positions = torch.arange(count) + (seq_lens - query_start_loc[1:])[rows]
    blocks = block_table[rows, positions // block_size].long()
    out[:count] = blocks * block_size + positions % block_size


def chosen(values, mask=None, *, most=4, backwards=False):
    kept = values.long() if mask is None else values[mask].long()
    kept = kept.flip(0) if backwards else kept.clone()
    return kept[:most], len(kept)


def scaled(seq_lens, weights):
    return seq_lens * weights


def gathered(rows, pool, order, steps, num_rows):
    return pool[rows.long()]


class Window:
    def __init__(self, capacity):
        self.capacity, self.total = capacity, 0
        self.kept = torch.zeros(0, dtype=torch.int64)

    def add(self, numbers):
        self.kept = torch.cat([self.kept, numbers])[-self.capacity :]
        self.total += len(numbers)

    def last(self, count):
        return self.kept[max(0, len(self.kept) - count) :].clone()

    def write(self, out):
        count = min(3, len(self.kept))
        out[:count] = self.kept[:count]
        return count


class FreeBlocks:
    """Hand out blocks of a ring."""

    def __init__(self, num_blocks):
        self.ring, self.head, self.num_free = torch.arange(num_blocks), 0, num_blocks

    def alloc(self, count):
        count = count if count <= self.num_free else 0
        ids = self.ring[(self.head + torch.arange(count)) % len(self.ring)]
        self.head = (self.head + count) % len(self.ring)
        self.num_free -= count
        return ids

    def free(self, ids):
        tail = (self.head + self.num_free) % len(self.ring)
        first = min(len(ids), len(self.ring) - tail)
        self.ring[tail : tail + first] = ids[:first]
        self.ring[: len(ids) - first] = ids[first:]
        self.num_free += len(ids)
