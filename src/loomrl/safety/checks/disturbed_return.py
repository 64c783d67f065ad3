"""Observation noise costs little return: the same seeds with and without noise, paired."""

import numpy as np
from gymnasium import spaces
from pydantic import Field

from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.check import FALSIFICATION, CheckConfig, Context, Scope
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import violates
from loomrl.safety.probing.judging import APPROXIMATE, METHOD, judge_drop, least_return, return_limit
from loomrl.safety.probing.probes import (
    Disturbance,
    act_seeing,
    noise_scale,
    not_disturbed,
    shield_assumptions,
    to_texts,
)
from loomrl.types import Claim, Episode, Verdict

NAME = "disturbed_return"
STAGE = FALSIFICATION
LOCAL = False
not_applicable = to_texts


class DisturbedReturnConfig(CheckConfig):
    """Noise of `noise` standard deviations may lower the mean return by `max_return_drop` of its size.

    `num_episodes` of the safety episodes are played again with noise. The bounds are from `bootstrap_replicates`
    resamples.
    """

    mandatory: bool = False
    noise: float = Field(default=0.05, gt=0)
    max_return_drop: float = Field(default=0.1, gt=0)
    num_episodes: int = Field(default=64, ge=2)
    bootstrap_replicates: int = Field(default=2_000, ge=100)


Config = DisturbedReturnConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: DisturbedReturnConfig) -> list[Claim]:
    """One claim where observations are a Box: noise on them costs little return. Else none.

    Raises:
        EnvironmentFault: when the environment breaks its API.
    """
    if not isinstance(context.observation_space, spaces.Box):
        return []
    plain = list(context.episodes[: config.num_episodes])
    scale = noise_scale(context.visited, config.noise)
    disturb = Disturbance(context.observation_space, scale, context.config.first_seed)
    noisy = context.play(act_seeing(context.policy, disturb), [episode.seed for episode in plain])
    before, after = (np.array([episode.episode_return for episode in group]) for group in (plain, noisy))
    limit = return_limit(before, config.max_return_drop)
    drop = judge_drop(context, NAME, before, after, limit, config.bootstrap_replicates)
    evidence = {
        "kind": NAME,
        "noise_scale": scale.ravel().tolist(),
        "key": context.config.first_seed,
        "seeds": [episode.seed for episode in plain],
        "returns": before.tolist(),
        "disturbed_returns": after.tolist(),
        "num_violating_episodes": sum(violates(least_return(plain, config.max_return_drop), one) for one in noisy),
    }
    return [
        context.claim(
            evidence,
            judged=drop,
            failure=_worst(plain, noisy) if drop.verdict is Verdict.REFUTED else None,
            statement=(
                f"noise of {config.noise:g} standard deviations on each observation component lowers the mean return "
                f"by at most {config.max_return_drop:.0%}"
            ),
            method=METHOD,
            assumptions=[
                "Gaussian noise, drawn anew for each distinct observation",
                APPROXIMATE,
                *shield_assumptions(context),
            ],
            num_samples=len(plain),
            label=not_disturbed(context, scale, is_noise=True),
            finding=(
                f"the mean return falls by {(before - after).mean():.4g}, bound {drop.bound.measured:.4g}; allowed is "
                f"{limit:.4g}"
            ),
        )
    ]


def disturbed_limits(context: Context, config: DisturbedReturnConfig) -> dict[str, ConstraintConfig]:
    """The return below which an episode lost more than may be lost on average, by claim id."""
    return {NAME: least_return(context.episodes[: config.num_episodes], config.max_return_drop)}


def scope(config: DisturbedReturnConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"{claim.num_samples} seeds, each played with and without noise",
        "other disturbances: delays, bias, drift, noise of another size, or one that somebody chooses",
        f"a fall of the mean return that is above {config.max_return_drop:.0%} also at its lower bound",
    )


def replay(failure: Failure) -> Replayed:
    """Play the episode under the same noise: reproduced where it returns less than without noise, as was recorded.

    Raises:
        EnvironmentFault: when the environment breaks its API.
    """
    space, document = failure.observation_space, failure.document
    scale = np.asarray(document["noise_scale"], dtype=np.float64).reshape(space.shape)
    episode = failure.play(act_seeing(failure.policy, Disturbance(space, scale, int(document["key"]))))
    before = float(document["returns"][document["seeds"].index(episode.seed)])
    after = episode.episode_return
    finding = f"noise lowers the return of seed {episode.seed} from {before:.6g} to {after:.6g}"
    return Replayed(reproduced=after < before, finding=finding, episode=episode)


def _worst(plain: list[Episode], noisy: list[Episode]) -> tuple[str, Episode]:
    calm, disturbed = max(
        zip(plain, noisy, strict=True), key=lambda two: (two[0].episode_return - two[1].episode_return, -two[0].seed)
    )
    told = (
        f"in the episode of seed {calm.seed} noise lowers the return from {calm.episode_return:.6g} to "
        f"{disturbed.episode_return:.6g}"
    )
    return told, disturbed
