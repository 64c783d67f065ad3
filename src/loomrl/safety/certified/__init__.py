"""Properties of a network that hold for every input of a region, with the counterexample where they do not."""
