"""Judgement of outputs by the cache slots that a kernel would read and write.

Uses the batch in numbers and never the reference.
"""
