"""Language policies: tokens, transformers, generation."""
