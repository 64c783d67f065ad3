"""Wrappers around one environment."""
