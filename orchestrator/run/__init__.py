"""Workers, barrier, merge: executes what the schedule says."""
