"""One short file for each protocol: it translates messages, and nothing else."""
