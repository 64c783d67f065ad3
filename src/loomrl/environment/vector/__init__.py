"""Vectorised environments: one interface over several back-ends, and the choice between them."""
