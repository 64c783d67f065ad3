"""The safety case: claims, evidence, counterexamples, and how they are checked again."""
