"""Four functions of vLLM that attnproof itself has no operation for.

`attnproof verify --candidate candidate.py --operations linear_build.py` in this folder judges one
of them; `--operations` is repeatable.
"""
