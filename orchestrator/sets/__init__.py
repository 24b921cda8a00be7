"""What to compile: archives, manifests, jobs, create infos."""
