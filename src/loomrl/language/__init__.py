"""Small language policies: tokens, a transformer, generation, and learning from scored token trajectories."""
