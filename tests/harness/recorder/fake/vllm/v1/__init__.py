"""Modules of engine version 1."""
