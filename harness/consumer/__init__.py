"""Check outputs by the cache slots that a kernel would read and write.

The expected slots are computed from the batch's numbers; the reference is never used.
"""
