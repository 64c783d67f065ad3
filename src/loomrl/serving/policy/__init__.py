"""The versions a server loads: where they come from, the model, its shield, its role."""
