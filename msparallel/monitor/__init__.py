"""A job and its devices while they run: what `monitor` shows."""
