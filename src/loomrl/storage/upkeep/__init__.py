"""Housekeeping: freeing what nothing needs, copying what cannot be rebuilt."""
