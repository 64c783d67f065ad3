"""What people order: overrides, the plan, the kill switch."""
