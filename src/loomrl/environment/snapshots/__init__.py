"""Snapshots: an environment's interface, code and dynamics, kept and compared."""
