"""What changed in the code that drivers make, between two builds, pipeline by pipeline."""
