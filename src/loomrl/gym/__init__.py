"""Environments that come with LoomRL."""
