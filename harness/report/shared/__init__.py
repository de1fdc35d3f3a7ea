"""Rows, words, numbers and files that every format uses."""
