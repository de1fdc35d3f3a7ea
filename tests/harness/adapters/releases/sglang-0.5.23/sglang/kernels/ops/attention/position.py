"""Stand-in for the function that launches the kernel."""


def compute_position_triton(prefix_lens, lens, total):
    return prefix_lens, lens
