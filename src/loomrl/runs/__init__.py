"""Runs of the life cycle: configs, checks before the start, stages, the record and the report."""
