"""Rollout workers: processes that collect for learners."""
