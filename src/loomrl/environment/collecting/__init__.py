"""Stepping environments with a policy, and the log of their episodes."""
