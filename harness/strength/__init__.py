"""Strength of the harness: mutations of right code that it must find, name and shrink.

`catalogue` lists them. `running` plants one, in the candidate alone or in the reference too,
runs the harness and compares the findings with the catalogue.
"""
