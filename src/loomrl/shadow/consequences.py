"""What follows where challenger and champion differ: both go on from the same state, and what comes of it is compared.

How often two versions agree says nothing of what their disagreements lead to. The champion plays episodes of the
snapshot; of each, one decision in which the challenger differs is drawn (`loomrl.shadow.sampling`), and from that state
on, with the same seed and the same actions before, the challenger plays to the end. What the champion did there is the
episode itself: both meet the same random numbers.

Flaws may hide where the champion never goes. So in further episodes one action, drawn at random, is held for as long as
the champion withstands it, and then either goes on. And sensors are not exact: in others both observe what is off by
noise, less of it than the champion withstands. Whole episodes on the same seeds say which of both earns more
(`loomrl.shadow.whole`).
"""

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ConfigError, GateRefused
from loomrl.runs.config import PolicyConfig
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import check_constraint
from loomrl.serving.policy.distance import action_distance, agrees
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.config import BURSTS, NOISE_MARGIN, NOISES, PILOT_EPISODES
from loomrl.shadow.continuations import Continuations
from loomrl.shadow.decisions import ShadowDecisions, decisions_along
from loomrl.shadow.following import PREFIX, limit_id, refuting_confidence
from loomrl.shadow.handover import Handover, broken, failed_alone, fails, loses_much, of_whole_episodes
from loomrl.shadow.sampling import Rarity, probabilities, stakes_of
from loomrl.shadow.whole import Floats, compare_pairs, compare_travel
from loomrl.statistics.clustered import mean_over_units, rate_over_units
from loomrl.types import Consequences, Continuation, Episode, LimitFollowed, Noisy, Travel, WholeEpisodes

_RANDOM_EPISODES = 32
_WITHSTOOD = 1  # most pilot episodes with a burst, or noise, in which the champion may fail
_SHORTEST = 8  # steps of an episode that can be disturbed
_MOST_SHOWN = 10
_DIFFERENCE = attrgetter("difference")


def examine(
    config: PolicyConfig, snapshot_folder: Path, challenger: ServedPolicy, champion: ServedPolicy | None
) -> Consequences:
    """Play, hand over and compare. Without a champion the limits are counted on the challenger's own episodes.

    Where the config says so, a package is missing or infos do not tell what a limit is on, nothing is examined: the
    result has `examined` False, and `why_not`.

    Raises:
        GateRefused: where a version has no answer to an observation.
        EnvironmentFault: where the environment breaks its API, or an episode does not repeat.
        ArtifactError: where the snapshot was changed.
    """
    if not config.shadow.consequences.examine:
        return Consequences(examined=False, why_not="the config says so: shadow.consequences.examine is false")
    try:
        return _Examination(config, snapshot_folder, challenger, champion).run()
    except (ConfigError, ImportError) as error:  # a package is missing, or the infos do not tell what a limit is on
        return Consequences(examined=False, why_not=f"the snapshot cannot be played here: {error}")


def play_again(
    state: Continuation, config: PolicyConfig, snapshot_folder: Path, challenger: ServedPolicy, champion: ServedPolicy
) -> Handover:
    """Both versions play an episode of a report again; what noise is measured in is found as it was.

    Raises:
        GateRefused: where a version has no answer to an observation.
        EnvironmentFault: where the environment breaks its API, or the episode does not repeat.
        ArtifactError: where the snapshot was changed.
        ConfigError: where a package that the environment needs is missing.
    """
    play = Continuations(snapshot_folder, 1).play
    if state.noise:
        noise = [state.noise * _Examination(config, snapshot_folder, challenger, champion).unit]
        (first,), (second,) = (play(one, [state.seed], noise=noise) for one in (champion, challenger))
        return Handover(first, second, 0, noise=state.noise)
    bursts, held = None, None
    if state.held_steps:
        held = np.asarray(state.held)
        bursts = [(state.step - state.held_steps, np.stack([held] * state.held_steps))]
    (first,) = play(champion, [state.seed], bursts=bursts)
    (second,) = play(challenger, [state.seed], [first.action[: state.step]])
    return Handover(first, second, state.step, state.weight, held, state.held_steps)


def play_pair(seed: int, snapshot_folder: Path, challenger: ServedPolicy, champion: ServedPolicy) -> Handover:
    """The whole episode of a seed, by each; raises as `play_again` does."""
    play = Continuations(snapshot_folder, 1).play
    (first,), (second,) = (play(one, [seed]) for one in (champion, challenger))
    return Handover(first, second, step=0)


class _Examination:
    def __init__(
        self, config: PolicyConfig, snapshot_folder: Path, challenger: ServedPolicy, champion: ServedPolicy | None
    ) -> None:
        self.settings, self.confidence = config.shadow.consequences, config.shadow.confidence
        self.limits, self.promotion = config.safety.constraints, config.promotion
        watched = config.shadow.seeds[: min(config.shadow.num_episodes, self.settings.num_episodes)]
        self.seeds = [*watched, *self.settings.seeds]
        parts = [self.seeds[part.start : part.stop] for part in self.settings.parts]
        self.own, self.to_disturb, self.to_try, self.noisy, self.to_try_noise, self.more = parts
        self.challenger, self.champion = challenger, champion
        self.continuations = Continuations(snapshot_folder, self.settings.num_envs)
        self.rng = np.random.default_rng(config.shadow.first_seed)
        self.refuting = refuting_confidence(self.confidence, len(self.limits))

    @cached_property
    def episodes(self) -> list[Episode]:
        """Those of the champion; of the challenger where there is none. Raises ConfigError where none tells what a
        limit is on."""
        played = self.continuations.play(self.champion or self.challenger, self.own)
        for limit in self.limits:
            check_constraint(limit, *played)
        return played

    @cached_property
    def scale(self) -> float:
        """What the champion earns above random actions; where it earns no more, its absolute mean return."""
        played = self.continuations.play_at_random(self.seeds[:_RANDOM_EPISODES])
        mean = _mean_return(self.episodes)
        above = mean - _mean_return(played)
        return above if above > 0 else abs(mean)

    @property
    def unit(self) -> Floats:
        """A deviation of what the champion observes, (*obs)."""
        observed = np.concatenate([episode.obs for episode in self.episodes]).astype(np.float64)
        deviation: Floats = np.std(observed, axis=0)
        return deviation

    def run(self) -> Consequences:
        num_decisions = sum(episode.length for episode in self.episodes)
        found = Consequences(examined=True, num_episodes=len(self.episodes), num_decisions=num_decisions)
        if self.champion is None:
            counted = [(limit, [broken(limit, one, 0) for one in self.episodes]) for limit in self.limits]
            return found.model_copy(update={"limits": [self._followed(*each) for each in counted]})
        num_disagreements, drawn = self._handovers(self.champion)
        disturbed, burst, why_not = self._disturbed(self.champion)
        failed, champion_failed = failed_alone(disturbed, self.limits, self.scale)
        is_same = self.challenger.chooses and not num_disagreements  # continuous actions that agree may still differ
        alone = self.episodes if is_same else self.continuations.play(self.challenger, self.own)
        whole = self._whole(self.champion, alone)
        noisy, under_noise = self._noisy(self.champion)
        pairs = [Handover(*both, step=0) for both in zip(self.episodes, alone, strict=True)]
        followed = [one for one in drawn if one is not None]
        return found.model_copy(
            update={
                "num_disagreements": num_disagreements,
                "num_continued": sum(one is not None for one in drawn),
                "limits": [
                    self._followed(limit, [0.0 if one is None else one.excess(limit) for one in drawn])
                    for limit in self.limits
                ],
                "return_difference": mean_over_units(
                    [0.0 if one is None else one.weight * one.difference for one in drawn], self.confidence
                ),
                "return_scale": self.scale,
                "burst_steps": burst,
                "num_disturbed": len(disturbed),
                "num_failed": len(failed),
                "num_champion_failed": len(champion_failed),
                "why_not_disturbed": why_not,
                "whole": whole,
                "travel": self._travel(alone),
                "noisy": noisy,
                "worst": self._worst([*followed, *disturbed, *under_noise, min(pairs, key=_DIFFERENCE)]),
                "counterexamples": self._counterexamples(followed, failed, under_noise),
            }
        )

    # --- disagreements ---

    def _handovers(self, champion: ServedPolicy) -> tuple[int, list[Handover | None]]:
        """How many disagreements there are, and for each episode one of them followed; None where there is none."""
        told = [decisions_along(policy, self.episodes) for policy in (champion, self.challenger)]
        rarity = Rarity(np.concatenate([episode.obs for episode in self.episodes]))
        total, picked = 0, []
        for index, (episode, own, other) in enumerate(zip(self.episodes, *told, strict=True)):
            distance = action_distance(episode.action, other.action, self.challenger)
            places = np.flatnonzero(~agrees(distance, self.challenger))
            total += len(places)
            if len(places):
                picked.append((index, *self._draw(episode, own, other, places, rarity)))
        chosen = [self.episodes[index] for index, _, _ in picked]
        given = [episode.action[:step] for episode, (_, step, _) in zip(chosen, picked, strict=True)]
        played = self.continuations.play(self.challenger, [episode.seed for episode in chosen], given)
        handovers: list[Handover | None] = [None] * len(self.episodes)
        for (index, step, weight), episode in zip(picked, played, strict=True):
            handovers[index] = Handover(self.episodes[index], episode, step, weight=weight)
        return total, handovers

    def _draw(
        self, episode: Episode, own: ShadowDecisions, other: ShadowDecisions, places: NDArray[Any], rarity: Rarity
    ) -> tuple[int, float]:
        """The step of a disagreement, and its weight in an unbiased mean over those of the episode."""
        stakes = stakes_of(self.challenger, own.rows(places), other.rows(places))
        chances = probabilities(stakes, rarity(episode.obs[places]))
        picked = int(self.rng.choice(len(places), p=chances))
        return int(places[picked]), float(1.0 / (chances[picked] * len(places)))

    def _followed(self, limit: ConstraintConfig, values: Sequence[float]) -> LimitFollowed:
        """A limit on what followed, from one value for each episode."""
        rate = rate_over_units(values, self.confidence, self.refuting)
        return LimitFollowed(
            name=limit.name,
            per=limit.per,
            limit=limit.max_probability,
            num_violating=int(np.count_nonzero(values)),
            rate=rate.estimate,
            upper=rate.high,
            lower=rate.low,
            mandatory=limit.mandatory,
        )

    # --- disturbances ---

    def _disturbed(self, champion: ServedPolicy) -> tuple[list[Handover], int, str]:
        """Episodes that went on after a disturbance, its steps, and why there are none."""
        length = int(np.median([episode.length for episode in self.episodes]))
        if not self.settings.num_disturbed or length < _SHORTEST:
            asked = "episodes are too short" if self.settings.num_disturbed else "num_disturbed is 0"
            return [], 0, asked
        seeds, count = self.to_disturb, self.settings.num_disturbed
        disturbing = _Disturbing(self.continuations, length, self.rng)
        burst = self._withstood(champion, disturbing, self.to_try)
        if not burst:
            return [], 0, "the champion does not withstand a single other action"
        bursts = disturbing.bursts([burst] * count)
        played = self.continuations.play(champion, seeds, bursts=bursts)
        kept = [index for index in range(count) if played[index].length > _end(bursts[index])]
        if not kept:
            return [], 0, "no episode goes on after another action was held"
        given = [played[index].action[: _end(bursts[index])] for index in kept]
        after = self.continuations.play(self.challenger, [seeds[index] for index in kept], given)
        return [
            Handover(played[index], one, _end(bursts[index]), held=bursts[index][1][0], held_steps=burst)
            for index, one in zip(kept, after, strict=True)
        ], burst, ""  # fmt: skip

    def _withstood(self, champion: ServedPolicy, disturbing: "_Disturbing", seeds: Sequence[int]) -> int:
        """The longest burst that the champion withstands, as all shorter ones; 0 where there is none."""
        tried = [steps for steps in BURSTS if steps <= max(1, disturbing.length // 4)]
        lengths = [steps for steps in tried for _ in range(PILOT_EPISODES)]
        bursts = disturbing.bursts(lengths)
        played = self.continuations.play(champion, seeds[: len(bursts)], bursts=bursts)
        stood = [self._stands(one, burst) for one, burst in zip(played, bursts, strict=True)]
        return int(_longest(tried, np.reshape(stood, (len(tried), PILOT_EPISODES))))

    def _stands(self, episode: Episode, burst: tuple[int, NDArray[Any]]) -> bool:
        """Whether the champion's episode goes on after the burst, earns as usual and keeps the limits."""
        end = _end(burst)
        return episode.length > end and self._holds(episode, end)

    # --- whole episodes ---

    def _whole(self, champion: ServedPolicy, alone: Sequence[Episode]) -> WholeEpisodes:
        """Which of both earns more; as many further episodes as decide it."""

        def play(seeds: Sequence[int]) -> tuple[Floats, Floats]:
            first, second = (_returns(self.continuations.play(one, seeds)) for one in (self.challenger, champion))
            return first, second

        first, second = _returns(alone), _returns(self.episodes)
        return compare_pairs(first, second, self.own, self.more, play, self.promotion, self.refuting)

    def _travel(self, alone: Sequence[Episode]) -> Travel | None:
        ratio = self.settings.max_travel_ratio
        return compare_travel(self.challenger, alone, self.episodes, ratio, self.confidence, self.refuting)

    # --- noise ---

    def _noisy(self, champion: ServedPolicy) -> tuple[Noisy, list[Handover]]:
        """What comes of noise that the champion withstands, and the episodes in which the challenger fails under it."""
        if not self.noisy or self.episodes[0].obs.dtype.kind != "f":
            asked = "num_noisy is 0" if not self.noisy else "what is observed is no measurement"
            return Noisy(why_not=asked), []
        unit = self.unit
        try:
            withstood = self._withstands(champion, unit)
        except GateRefused as refused:  # a shield knows no state but its own
            return Noisy(why_not=f"under noise the champion is not sure to act: {refused}"), []
        if not withstood:
            return Noisy(why_not="the champion does not withstand the least noise that was tried"), []
        deviations = withstood / NOISE_MARGIN
        noise = [deviations * unit] * len(self.noisy)
        played = self.continuations.play(champion, self.noisy, noise=noise)
        kept = [index for index, episode in enumerate(played) if self._holds(episode)]
        seeds = [self.noisy[index] for index in kept]
        others = self.continuations.play(self.challenger, seeds, noise=noise[: len(seeds)])
        both = [Handover(played[index], one, 0, noise=deviations) for index, one in zip(kept, others, strict=True)]
        failed = [one for one in both if fails(one, self.limits, self.scale)]
        worst = min(failed, key=_DIFFERENCE, default=None)
        found = Noisy(
            deviations=deviations,
            withstood=withstood,
            num_episodes=len(both),
            num_failed=len(failed),
            seed=None if worst is None else worst.champion.seed,
        )
        return found, failed

    def _withstands(self, champion: ServedPolicy, unit: Floats) -> float:
        """The most noise, in deviations, that the champion withstands, as all that is less; 0 where there is none."""
        sizes = [size for size in NOISES for _ in range(PILOT_EPISODES)]
        played = self.continuations.play(champion, self.to_try_noise, noise=[size * unit for size in sizes])
        stood = np.reshape([self._holds(one) for one in played], (len(NOISES), PILOT_EPISODES))
        return _longest(NOISES, stood)

    def _holds(self, episode: Episode, step: int = 0) -> bool:
        """Whether the champion's episode earns as usual and, from the step on, keeps the limits."""
        if loses_much(episode.episode_return - _mean_return(self.episodes), self.scale):
            return False
        return not any(broken(limit, episode, step) for limit in of_whole_episodes(self.limits))

    # --- what is shown ---

    def _worst(self, handovers: Sequence[Handover]) -> list[Continuation]:
        """Those after which limits were broken, or most was lost."""
        found = [(one, self._broken(one)) for one in handovers]
        bad = [(one, violated) for one, violated in found if violated or one.difference < 0]
        bad.sort(key=lambda each: (each[0].difference, -len(each[1])))
        return [one.shown(violated) for one, violated in bad[:_MOST_SHOWN]]

    def _counterexamples(
        self, followed: Sequence[Handover], failed: Sequence[Handover], under_noise: Sequence[Handover]
    ) -> dict[str, Continuation]:
        """For each claim about them the handover that speaks most against it, if any does."""
        worst = {}
        for limit in self.limits:
            broken_by = [one for one in followed if one.excess(limit) > 0]
            worst[limit_id(limit.name)] = max(broken_by, key=methodcaller("excess", limit), default=None)
        losing = [one for one in followed if one.difference < 0]
        worst[f"{PREFIX}.return"] = min(losing, key=lambda one: one.weight * one.difference, default=None)
        worst[f"{PREFIX}.disturbed"] = min(failed, key=_DIFFERENCE, default=None)
        worst[f"{PREFIX}.noise"] = min(under_noise, key=_DIFFERENCE, default=None)
        return {name: one.shown(self._broken(one)) for name, one in worst.items() if one is not None}

    def _broken(self, handover: Handover) -> list[str]:
        return [limit.name for limit in self.limits if handover.excess(limit) > 0]


class _Disturbing:
    """Draws which action is held, and from which step of the first half of an episode on."""

    def __init__(self, continuations: Continuations, length: int, rng: np.random.Generator) -> None:
        self.length = length
        self._continuations, self._rng = continuations, rng

    def bursts(self, lengths: Sequence[int]) -> list[tuple[int, NDArray[Any]]]:
        """For each length a step and the actions (K, *action) from it on."""
        actions = self._continuations.draw_actions(len(lengths), int(self._rng.integers(2**31)))
        firsts = self._rng.integers(0, max(1, self.length // 2), size=len(lengths))
        return [
            (int(first), np.stack([action] * steps))
            for first, action, steps in zip(firsts, actions, lengths, strict=True)
        ]


def _longest(tried: Sequence[float], stood: NDArray[np.bool_]) -> float:
    """The last of what was tried that the champion withstood, (N, pilot episodes), as all before; 0 where none."""
    longest = 0.0
    for size, results in zip(tried, stood, strict=True):
        if PILOT_EPISODES - int(results.sum()) > _WITHSTOOD:
            break
        longest = size
    return longest


def _end(burst: tuple[int, NDArray[Any]]) -> int:
    return burst[0] + len(burst[1])


def _returns(episodes: Sequence[Episode]) -> Floats:
    return np.array([episode.episode_return for episode in episodes])


def _mean_return(episodes: Sequence[Episode]) -> float:
    return float(np.mean(_returns(episodes)))
