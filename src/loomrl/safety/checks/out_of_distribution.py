"""A calibrated alarm for observations unlike those the policy was examined on; writes `ood.json`.

The score of an observation x (flattened) is its squared Mahalanobis distance (x - mean)^T precision (x - mean); it is
out of distribution when the score is above `threshold` (Lee et al. 2018, arXiv 1807.03888; split conformal threshold:
Vovk et al. 2005). Episodes are dealt into three groups: the first fits mean and precision, the second sets the
threshold at its conformal quantile, the third measures false alarms. Steps of one episode depend on each other, so an
episode counts once in the bound: with its share of alarms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from loomrl.safety.check import OUT_OF_DISTRIBUTION, CheckConfig, Context, Scope
from loomrl.safety.probing.judging import judge_mean
from loomrl.safety.probing.probes import to_texts
from loomrl.types import Claim, Episode

NAME = "out_of_distribution"
STAGE = OUT_OF_DISTRIBUTION
LOCAL = False
not_applicable = to_texts
FILE = "ood.json"

Floats = NDArray[np.float64]


class OutOfDistributionConfig(CheckConfig):
    """The alarm is calibrated to the rate `alpha`; the claim is that its true rate is at most `max_false_alarm_rate`.

    `shifts`, in standard deviations of each component alone, are how far observations are moved to say how often the
    alarm is raised. Observations of more than `max_components` components, such as pictures, are left out. Not
    mandatory by default: the claim is about a monitor, not about the policy.
    """

    mandatory: bool = False
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    max_false_alarm_rate: float = Field(default=0.1, gt=0, lt=1)
    shifts: list[float] = Field(default=[1.0, 3.0, 5.0])  # standard deviations, each component alone
    max_components: int = Field(default=512, ge=1)  # wider observations (pictures) are left out


Config = OutOfDistributionConfig  # as all plug-ins of this kind name it


@dataclass(frozen=True)
class Detector:
    """Detects unusual observations by their squared Mahalanobis distance, which is above `threshold` for them."""

    mean: Floats  # (D,)
    precision: Floats  # (D, D)
    threshold: float

    def score(self, obs: Floats) -> Floats:
        """Observations (N, D) -> squared Mahalanobis distances (N,)."""
        centred = obs - self.mean
        # einsum without BLAS: the same sums whatever the number of threads
        return np.asarray(np.einsum("ni,ij,nj->n", centred, self.precision, centred))

    def alarms(self, obs: Floats) -> NDArray[np.bool_]:
        """Which observations are out of distribution, (N, D) -> (N,)."""
        return self.score(obs) > self.threshold


def examine(context: Context, config: OutOfDistributionConfig) -> list[Claim]:
    """One claim, where observations are a Box of at most `max_components` components and there are six episodes or
    more; else none. Writes `ood.json` beside the case."""
    space = context.observation_space
    if not isinstance(space, spaces.Box) or math.prod(space.shape) > config.max_components or len(context.episodes) < 6:
        return []
    fit, calibrate, test = ([_flat(episode) for episode in context.episodes[start::3]] for start in range(3))
    detector = calibrate_detector(np.concatenate(fit), np.concatenate(calibrate), config.alpha)
    rates = np.array([np.mean(detector.alarms(obs)) for obs in test])
    power = {f"{shift:g}": shift_power(detector, test, shift) for shift in config.shifts}
    document = {
        "mean": detector.mean.tolist(),
        "precision": detector.precision.tolist(),
        "threshold": detector.threshold,
        "alpha": config.alpha,
    }
    report = {"kind": NAME, "false_alarm_rate": float(rates.mean()), "num_test_episodes": len(test), "power": power}
    limit = config.max_false_alarm_rate
    judged = judge_mean(context, rates, limit, "share of steps")
    seen = ", ".join(f"{shift} deviations: {rate['mean']:.0%}" for shift, rate in power.items())
    claim = context.claim(
        report,
        judged=judged,
        beside=[context.evidence.document(FILE, document)],
        statement=f"the out-of-distribution alarm is false at a share of at most {limit:g} of an episode's steps",
        method="split conformal Mahalanobis distance; one-sided Hoeffding relative-entropy bound over episodes",
        assumptions=["episodes are independent; steps within one may depend on each other"],
        num_samples=len(rates),
        finding=(
            f"{rates.mean():.2%} false alarms, bound {judged.bound.measured:.3g}; "
            f"alarms when one component shifts by {seen}"
        ),
    )
    return [claim]


def scope(config: OutOfDistributionConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"the steps of {claim.num_samples} episodes that the alarm was not calibrated on",
        "that every unusual observation raises the alarm; anything about what the policy does then",
        f"a rate of false alarms whose lower bound is above {config.max_false_alarm_rate:g}",
    )


def calibrate_detector(fit: Floats, calibrate: Floats, alpha: float) -> Detector:
    """A detector with mean and precision of (N, D) observations; its threshold is the conformal quantile of (M, D)
    others.

    A share `alpha` of observations like these may be above it.
    """
    mean = fit.mean(axis=0)
    centred = fit - mean
    covariance = np.einsum("ni,nj->ij", centred, centred) / max(1, len(fit) - 1)
    # A component that never varies would make the covariance singular.
    ridge = 1e-6 * np.diag(np.maximum(np.diag(covariance), 1e-6))
    detector = Detector(mean, np.linalg.inv(covariance + ridge), math.inf)
    scores = np.sort(detector.score(calibrate))
    rank = min(len(scores), math.ceil((len(scores) + 1) * (1 - alpha)))
    return Detector(mean, detector.precision, float(scores[rank - 1]))


def shift_power(detector: Detector, test: Sequence[Floats], shift: float) -> dict[str, float]:
    """Share of alarms when one component is moved by `shift` standard deviations: `least`, `mean` and `most` over
    components.

    `test` holds observations (L, D) of each episode.
    """
    obs = np.concatenate(test)
    spread = obs.std(axis=0)
    rates = []
    for index in range(obs.shape[1]):
        moved = obs.copy()
        moved[:, index] += shift * spread[index]
        rates.append(float(np.mean(detector.alarms(moved))))
    return {"least": min(rates), "mean": float(np.mean(rates)), "most": max(rates)}


def _flat(episode: Episode) -> Floats:
    return np.asarray(episode.obs, dtype=np.float64).reshape(episode.length, -1)
