"""Inference engines: they complete prompts by a policy, and take its next version while they do."""

from loomrl.language.inference.engine import Completion, Completions, InferenceEngine, Sampling
from loomrl.language.inference.rollouts import Rollout

__all__ = ["Completion", "Completions", "InferenceEngine", "Rollout", "Sampling"]
