"""Code of the parent process: schedules the tasks of a run."""
