"""Finite models of environments: every state, every choice, every probability."""
