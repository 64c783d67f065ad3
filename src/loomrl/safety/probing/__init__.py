"""Policies and environments, tried out for checks."""
