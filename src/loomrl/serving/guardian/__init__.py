"""Monitors on the live stream, and the quarantine of versions they take out."""
