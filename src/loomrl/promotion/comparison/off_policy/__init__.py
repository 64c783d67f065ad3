"""What a version would have earned, had it decided instead of the one that did: estimates from the audit log."""
