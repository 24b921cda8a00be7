"""Workers, barrier and merge: owns caches while they are in use."""
