"""What is wrong with a node before a job starts: the ladder of `msparallel doctor`."""
