"""A recorder that runs inside a serving engine (docs/recordings.md).

It is loaded by the engine, so it imports nothing of the harness, and nothing heavy before the
engine has imported it.
"""
