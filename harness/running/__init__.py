"""Processes of a run: the parent schedules tasks, a task draws and judges, a worker calls."""
