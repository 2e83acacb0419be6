"""MindSpore's auto-parallel engine for devices that do not exist: compile any rank of a job, and read what came out."""
