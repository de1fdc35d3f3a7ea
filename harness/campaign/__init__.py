"""Campaigns: many small examinations on many machines, joined into one run."""
