"""Networks of torch: encoders, policy and value heads, the normaliser of what is observed."""
