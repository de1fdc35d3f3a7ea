"""Three functions of vLLM, defined by a user.

`attnproof verify --candidate candidate.py --operations compute_sub_block_ptrs.py` in this folder
judges one of them; `--operations` is repeatable.
"""
