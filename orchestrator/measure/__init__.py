"""What it cost: outcomes and creation feedback turned into reports."""
