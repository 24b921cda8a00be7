"""What a device lacks of what a captured pipeline needs, and why."""
