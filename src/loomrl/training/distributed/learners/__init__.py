"""Several learners: their group, their jobs, their joint checkpoints."""
