"""A queue of jobs, replayed: a trace and a policy -> who waits, what is lost, what is in use."""
