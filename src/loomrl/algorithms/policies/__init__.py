"""Trained policies: what they choose by, how they are saved and loaded."""
