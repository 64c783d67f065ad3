"""Replay: transitions kept once, sampled uniformly or by priority; without environments or torch."""
