"""The virtual cluster: the compiled graphs of all ranks, executed here."""
