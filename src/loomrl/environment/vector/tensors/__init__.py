"""Environments as tensors on any torch device: one file each, named like the module of the entry point."""
