"""Strength of the harness: mutations of right code that it must find, name and shrink.

`catalogue` lists them, `running` plants one in the candidate or in the reference too, runs the
harness and compares what it found with what the catalogue expects.
"""
