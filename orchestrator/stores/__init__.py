"""What is kept: cache files, and how files are written so that they survive."""
