"""Searching for better training settings with Optuna. A trial trains apart from the policy's own stages."""
