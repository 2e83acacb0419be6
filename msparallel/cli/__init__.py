"""The command line: one file a verb. Importing this package imports nothing else."""
