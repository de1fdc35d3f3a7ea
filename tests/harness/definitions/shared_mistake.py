"""The same mistake as that of the reference: results depend on the first row."""


def less_the_first(seq_lens):
    return seq_lens - seq_lens[:1] if len(seq_lens) else seq_lens.clone()
