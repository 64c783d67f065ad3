"""Compiled learners: networks, losses and optimisers as machine code, for dense policies on the CPU. Needs no torch."""
