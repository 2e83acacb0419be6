"""Machines of a cluster: who they are, and which rank runs where."""
