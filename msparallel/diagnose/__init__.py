"""Logs of a job that failed -> what went wrong first, and what only followed from it. Pure Python."""
