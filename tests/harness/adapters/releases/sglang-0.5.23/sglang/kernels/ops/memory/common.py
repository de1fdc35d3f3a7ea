"""Stand-in: the kernel writes 7 into the whole pool."""


class Writer:
    def __getitem__(self, grid):
        def launch(table, prefixes):
            assert table.is_contiguous()
            table.fill_(7)

        return launch


write_req_to_token_pool_triton = Writer()


def get_last_loc_triton(req_to_token, rows, prefix_lens):
    assert rows.is_contiguous()
    return prefix_lens
