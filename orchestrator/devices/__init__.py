"""What compiles: the Device seam and its implementations."""
