"""Around recorded observations the action stays the same: a certified radius for each, proved and not sampled."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, model_validator

from loomrl.errors import ArtifactError, ConfigError
from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.certified.properties import METHOD
from loomrl.safety.certified.regions import preferred
from loomrl.safety.certified.vnnlib import Case
from loomrl.safety.check import CERTIFIED, CheckConfig, Context, Scope
from loomrl.safety.checks.robustness import action_change
from loomrl.safety.probing.probes import ask, noise_scale, not_disturbed, sample_visited
from loomrl.types import Bound, Claim, Json, Verdict

NAME = "stability"
STAGE = CERTIFIED
LOCAL = True

Array = NDArray[np.float64]


class StabilityConfig(CheckConfig):
    """At `min_share` of `num_visited` recorded observations, nothing within `radius` changes the action.

    A radius is in standard deviations of each component, over what was recorded. A continuous action may change by
    `max_action_change` of its range in each component. The largest radius that is certified is searched in `halvings`
    steps between 0 and twice `radius`. Without a radius nothing is claimed.

    With `on_uncertified` the policy server looks whether an observation is within a certified radius: it marks those
    that are not, or has the fallback act after them.
    """

    mandatory: bool = False
    radius: float | None = Field(default=None, gt=0)
    min_share: float = Field(default=0.9, gt=0, le=1)
    num_visited: int = Field(default=64, ge=1)
    max_action_change: float = Field(default=0.1, gt=0, lt=1)
    halvings: int = Field(default=5, ge=0)
    max_boxes: int = Field(default=2_000, ge=1)  # for each observation and radius
    on_uncertified: Literal["mark", "fallback"] | None = None

    @model_validator(mode="after")
    def _has_radii(self) -> Self:
        if self.on_uncertified is not None and self.radius is None:
            raise ValueError("`on_uncertified` needs a `radius`: without one nothing is certified")
        return self


Config = StabilityConfig  # as all plug-ins of this kind name it


def check_spaces(config: StabilityConfig, observation_space: Any, action_space: Any) -> None:
    """Raises `ConfigError` for spaces without boxes to look around in, before anything is trained; never without a
    radius."""
    if config.radius is None:
        return
    if not isinstance(observation_space, spaces.Box) or observation_space.dtype.kind != "f":
        raise ConfigError(f"safety.checks.{NAME}: observations are {observation_space}; a radius is one of floats")
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        raise ConfigError(f"safety.checks.{NAME}: actions are {action_space}; one choice or a Box can be certified")


def examine(context: Context, config: StabilityConfig) -> list[Claim]:
    """One claim where the config has a radius: actions stay the same around recorded observations. Else none.

    It is undecided where the policy's graph cannot be read.

    Raises:
        ConfigError: for spaces without boxes to look around in.
    """
    if config.radius is None:
        return []
    from loomrl.safety.certified.packed import pack
    from loomrl.safety.certified.policies import network_of
    from loomrl.safety.certified.search import SLACK

    check_spaces(config, context.observation_space, context.action_space)
    statement = (
        f"around at least {config.min_share:.0%} of {min(config.num_visited, len(context.visited))} recorded "
        "observations, no change of up to "
        f"{config.radius:g} deviations of any component {_promised(context.action_space, config)}"
    )
    try:
        policy = network_of(context.policy, context.action_space)
    except ArtifactError as error:
        return [context.undecided(statement, str(error))]
    obs = sample_visited(context.visited, config.num_visited, context.rng(NAME))
    prover = _Prover(context, config, pack(policy.network), policy.replay, noise_scale(context.visited, 1.0))
    found = [prover.around(one, config.radius) for one in obs]
    num_certified = sum(one.verdict is Verdict.PROVED for one in found)
    num_refuted = sum(one.verdict is Verdict.REFUTED for one in found)
    share, possible = num_certified / len(obs), 1.0 - num_refuted / len(obs)
    verdict = Verdict.UNDECIDED
    if share >= config.min_share:
        verdict = Verdict.PROVED
    elif possible < config.min_share:
        verdict = Verdict.REFUTED
    broken = [one.example for one in found if one.example is not None]
    radii = [one.radius for one in found]
    evidence = {
        "kind": NAME,
        "radii": radii,
        "num_certified": num_certified,
        "num_refuted": num_refuted,
        "max_action_change": config.max_action_change,
        "examples": broken[:3],
        **({} if config.on_uncertified is None else {"when_served": _when_served(config, prover, obs, radii)}),
    }
    finding = (
        f"certified around {num_certified} of {len(obs)} observations, broken around {num_refuted}; the median "
        f"certified radius is {float(np.median(radii)):.3g}"
    )
    failure = None
    if verdict is Verdict.REFUTED:
        first = broken[0]
        failure = (
            f"the action for {first['observation']} is {first['action']}, for {first['near']} it is {first['changed']}"
        )
    return [
        context.claim(
            evidence,
            failure=failure,
            statement=statement,
            method=METHOD,
            verdict=verdict,
            assumptions=[
                f"bounds in real arithmetic, with a slack of {SLACK:g}: no proof about the rounding of float32",
                "the recorded observations stand for themselves; a component that never varied is not varied here",
            ],
            bound=Bound(kind="share certified", measured=share, limit=config.min_share, unit="share of observations"),
            num_samples=len(obs),
            finding=finding,
            label=not_disturbed(context, config.radius * noise_scale(obs, 1.0)),
        )
    ]


def scope(config: StabilityConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"everything around {claim.num_samples} recorded observations, by bounds over at most {config.max_boxes} boxes",
        "observations that were not recorded; what the rounding of float32 may change",
        f"changed actions nearby at more than {1 - config.min_share:.0%} of these observations",
    )


def replay(failure: Failure) -> Replayed:
    """Ask the policy about an observation and the one nearby that changed its action: reproduced where it does
    again."""
    example = failure.document["examples"][0]
    obs = np.asarray([example["observation"], example["near"]], dtype=failure.observation_space.dtype)
    actions = np.asarray(ask(failure.policy, obs))
    change = float(action_change(failure.action_space, actions[:1], actions[1:])[0])
    limit = 0.5 if isinstance(failure.action_space, spaces.Discrete) else 0.999 * failure.document["max_action_change"]
    return Replayed(
        reproduced=change >= limit, finding=f"the actions are {actions[0].tolist()} and {actions[1].tolist()}"
    )


@dataclass(frozen=True)
class _Around:
    """What is known around one observation."""

    verdict: Verdict
    radius: float  # certified
    example: dict[str, Any] | None


class _Prover:
    def __init__(
        self, context: Context, config: StabilityConfig, network: Any, replay: Any, scale: NDArray[Any]
    ) -> None:
        self.context, self.config, self.network, self.replay = context, config, network, replay
        self.scale = np.asarray(scale, np.float64).reshape(-1)

    def around(self, obs: NDArray[Any], radius: float) -> _Around:
        """Decide a radius, then look for the largest one that can be certified."""
        cases = self._cases(obs)
        verdict, near = self._decide(obs, cases, radius)
        low, high = (radius, 2 * radius) if verdict is Verdict.PROVED else (0.0, radius)
        for _ in range(self.config.halvings):
            middle = 0.5 * (low + high)
            if self._decide(obs, cases, middle)[0] is Verdict.PROVED:
                low = middle
            else:
                high = middle
        example = None
        if near is not None:
            pair = np.stack([obs.reshape(-1), near]).reshape(2, *obs.shape).astype(obs.dtype)
            actions = np.asarray(ask(self.context.policy, pair))
            example = {
                "observation": pair[0].tolist(),
                "near": pair[1].tolist(),
                "action": actions[0].tolist(),
                "changed": actions[1].tolist(),
            }
        return _Around(verdict, low, example)

    def box(self, obs: NDArray[Any], radius: float) -> tuple[Array, Array]:
        """The lowest and the highest of the observations around one, (D,)."""
        space, middle = self.context.observation_space, obs.reshape(-1).astype(np.float64)
        low = np.clip(middle - radius * self.scale, space.low.reshape(-1), None)
        high = np.clip(middle + radius * self.scale, None, space.high.reshape(-1))
        return np.minimum(low, middle), np.maximum(high, middle)  # recorded beyond its space's bounds

    def _decide(
        self, obs: NDArray[Any], cases: list[tuple[Array, Array]], radius: float
    ) -> tuple[Verdict, NDArray[np.float32] | None]:
        from loomrl.safety.certified.search import PropertySearch

        if not cases:  # there is no other action
            return Verdict.PROVED, None
        low, high = self.box(obs, radius)
        questions = [Case(low, high, rows, limits) for rows, limits in cases]
        found = PropertySearch(self.network, questions, self._confirm).run(math.inf, self.config.max_boxes)
        return found.claimed, found.inputs

    def _confirm(self, inputs: Array, case: Case) -> NDArray[np.float32] | None:
        """An input whose action is another one: logits may be equal, and the first of them is chosen."""
        found: NDArray[np.float32] | None = self.replay.confirm(inputs, case)
        if found is None or not isinstance(self.context.action_space, spaces.Discrete):
            return found
        (other,) = np.flatnonzero(case.rows[0] < 0.0)
        return found if int(self.replay(found).argmax()) == other else None

    def _cases(self, obs: NDArray[Any]) -> list[tuple[Array, Array]]:
        """Ways in which the action is another one."""
        space = self.context.action_space
        outputs = self.replay(obs.reshape(-1).astype(np.float32)).astype(np.float64)
        if isinstance(space, spaces.Discrete):
            others = -preferred(int(outputs.argmax()), len(outputs))  # another logit is at least as large
            return [(row[None], np.zeros(1)) for row in others]
        span = (space.high - space.low).astype(np.float64).reshape(-1)
        allowed = self.config.max_action_change * np.where(np.isfinite(span) & (span > 0), span, 1.0)
        ways = []
        for index in range(len(outputs)):
            for sign in (1.0, -1.0):
                row = np.zeros((1, len(outputs)))
                row[0, index] = sign
                ways.append((row, np.array([sign * outputs[index] - allowed[index]])))
        return ways


def _when_served(config: StabilityConfig, prover: _Prover, obs: NDArray[Any], radii: list[float]) -> Json:
    """What the policy server takes with it: the certified boxes, and what to do outside of all of them."""
    boxes = [prover.box(one, radius) for one, radius in zip(obs, radii, strict=True) if radius > 0.0]
    ends = {name: [box[end].tolist() for box in boxes] for end, name in enumerate(("low", "high"))}
    return {"on_uncertified": config.on_uncertified, **ends}


def _promised(space: Any, config: StabilityConfig) -> str:
    if isinstance(space, spaces.Discrete):
        return "changes the action"
    return f"changes any component of the action by {config.max_action_change:.0%} of its range"
