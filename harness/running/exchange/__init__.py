"""What a candidate's process tells the judging process: raw outputs and observations."""
