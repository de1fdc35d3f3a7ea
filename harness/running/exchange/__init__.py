"""Messages between a candidate's process and the process that judges it, as data."""
