"""Looks for states from which a policy fails although it need not: pushes, recoveries and lone choices."""
