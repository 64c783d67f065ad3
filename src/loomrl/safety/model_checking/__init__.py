"""Model checking of finite Markov chains: PCTL with sound bounds, shields, and what other checkers read."""
