"""Estimates with intervals, tests, and bets; pure functions."""
