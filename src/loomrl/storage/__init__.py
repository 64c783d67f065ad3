"""What is kept: the audit log, LoomDB, MLflow's registry, and its upkeep."""
