"""What dry runs found, for people: alike things told once, slices of every rank, a self-contained HTML page."""
