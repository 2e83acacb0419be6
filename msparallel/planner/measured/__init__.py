"""Published measurements: a table of them as Workloads, and how far estimates are off."""
