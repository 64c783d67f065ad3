"""What follows disagreements: back doors are found, equals pass, and what is not examined is said."""

from pathlib import Path

import numpy as np
import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ConfigError
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.replay import CounterexampleReplay
from loomrl.serving.policy.model import STATE_OUT, ServedPolicy
from loomrl.shadow.consequences import _Examination, examine
from loomrl.shadow.continuations import Continuations
from loomrl.shadow.decisions import ShadowDecisions, decisions_along
from loomrl.shadow.following import claims_of
from loomrl.shadow.handover import Handover, broken, failed_alone
from loomrl.shadow.replay import replay
from loomrl.shadow.sampling import Rarity, probabilities
from loomrl.types import Claim, Consequences, Episode, Verdict
from tests.support.policies import BALANCING, back_door_folder, continuous_folder, discrete_folder, recurrent_folder

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path for path in (ROOT / "configs").glob("*.yaml") if not path.stem.startswith("gym-"))  # no texts
UP = ConstraintConfig(name="pole_stays_up", quantity="observation[2]", low=-0.2095, high=0.2095, max_probability=0.05)
TRACK = ConstraintConfig(
    name="cart_stays_on_track", quantity="observation[0]", low=-2.4, high=2.4, max_probability=0.05
)
VELOCITY = np.array([[-0.02, 0.02], [-0.1, 0.1], [-0.3, 0.3], [-1.0, 1.0]], dtype=np.float32)  # needs exact sensors
OTHER = BALANCING * np.array([[2.0], [1.3], [1.5], [0.8]], dtype=np.float32)  # balances by other weights


@pytest.fixture(scope="module")
def champion(tmp_path_factory: pytest.TempPathFactory) -> ServedPolicy:
    return ServedPolicy.load(discrete_folder(tmp_path_factory.mktemp("champion")), "1")


def limited(config: PolicyConfig, *limits: ConstraintConfig, **changes: object) -> PolicyConfig:
    followed = config.shadow.consequences.model_copy(update=changes)
    shadow = config.shadow.model_copy(update={"consequences": followed})
    safety = config.safety.model_copy(update={"constraints": list(limits)})
    return config.model_copy(update={"shadow": shadow, "safety": safety})


def verdicts(found: Consequences, config: PolicyConfig) -> dict[str, Claim]:
    return {claim.id.removeprefix("shadow.consequences."): claim for claim in claims_of(found, config.shadow)}


def replayed(
    claim: Claim, found: Consequences, config: PolicyConfig, snapshot: Path, *both: ServedPolicy
) -> CounterexampleReplay:
    """The counterexample of a refuted claim, played again by challenger and champion; equals do not fail in it."""
    challenger, champion = both
    assert claim.counterexample is not None
    again = replay(claim, found, config, snapshot, challenger, champion)
    assert again.reproduced, again.finding
    assert again.seed == claim.counterexample.seed
    assert again.identical is (True if claim.id in found.counterexamples else None)
    assert f"seed {again.seed}" in claim.counterexample.description
    assert not replay(claim, found, config, snapshot, champion, champion).reproduced
    return again


@pytest.mark.parametrize(("component", "threshold"), [(3, 1.2), (3, 1.0), (2, 0.1)], ids=["fast", "less_fast", "lean"])
@pytest.mark.long_cases("less_fast", "lean")
def test_a_back_door_that_the_champion_never_opens_is_refused_by_what_follows(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path, component: int, threshold: float
) -> None:
    flawed = ServedPolicy.load(back_door_folder(tmp_path, component, threshold), "2")
    config = limited(config, UP)
    found = examine(config, snapshot, flawed, champion)
    claims = verdicts(found, config)
    assert found.num_disagreements < 0.02 * found.num_decisions, "it agrees nearly everywhere"
    assert not all(claim.verdict is Verdict.SUPPORTED for claim in claims.values() if claim.mandatory), claims
    assert claims["disturbed"].verdict is Verdict.REFUTED or found.num_failed > 4, claims["disturbed"].finding
    worst = found.worst[0]
    assert worst.challenger_return < worst.champion_return
    assert worst.violated == ["pole_stays_up"]


def test_the_worst_state_is_reached_again_by_its_seed_and_what_disturbed_it(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    found = examine(limited(config, UP), snapshot, ServedPolicy.load(back_door_folder(tmp_path), "2"), champion)
    worst = next(one for one in found.worst if one.disturbed.startswith("action"))
    held = found.burst_steps
    burst = (worst.step - held, np.full(held, int(worst.disturbed.split()[1])))
    (episode,) = Continuations(snapshot, 1).play(champion, [worst.seed], bursts=[burst])
    np.testing.assert_array_equal(episode.obs[worst.step], np.array(worst.observation, np.float32))
    assert episode.episode_return == worst.champion_return


def test_one_that_decides_otherwise_and_as_well_passes(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    config = limited(config, UP)
    found = examine(config, snapshot, ServedPolicy.load(discrete_folder(tmp_path, OTHER), "2"), champion)
    assert found.num_disagreements > 0.05 * found.num_decisions
    assert found.num_continued > 0
    claims = claims_of(found, config.shadow)
    assert all(claim.verdict is Verdict.SUPPORTED for claim in claims), found
    with pytest.raises(ConfigError, match="has no counterexample to replay"):
        replay(claims[0], found, config, snapshot, champion, champion)
    assert found == examine(config, snapshot, ServedPolicy.load(tmp_path, "2"), champion), "it repeats itself"


def test_one_that_leaves_the_track_long_after_a_disturbance_is_refused(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    """It hardly minds where the cart is: undisturbed it stays near the middle to the end of the episode."""
    careless = discrete_folder(tmp_path, BALANCING * np.array([[0.1], [0.5], [1.0], [1.0]], np.float32))
    config = limited(config, TRACK)
    found = examine(config, snapshot, ServedPolicy.load(careless, "2"), champion)
    claims = verdicts(found, config)
    assert claims["disturbed"].verdict is Verdict.REFUTED
    assert claims["cart_stays_on_track"].verdict is not Verdict.REFUTED
    assert found.num_champion_failed == 0
    worst = found.counterexamples["shadow.consequences.disturbed"]
    assert worst.challenger_return > worst.step + 10 * found.burst_steps, "not at once"
    replayed(claims["disturbed"], found, config, snapshot, ServedPolicy.load(tmp_path, "2"), champion)


def test_failures_of_the_champion_count_against_those_of_the_challenger(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    config = limited(config, TRACK)
    careless = discrete_folder(tmp_path, BALANCING * np.array([[0.1], [0.5], [1.0], [1.0]], np.float32))
    found = examine(config, snapshot, ServedPolicy.load(careless, "2"), ServedPolicy.load(careless, "1"))
    assert (found.num_failed, found.num_champion_failed) == (0, 0)
    better = examine(config, snapshot, champion, ServedPolicy.load(careless, "1"))
    assert better.num_failed == 0
    assert better.num_champion_failed > 0
    assert verdicts(better, config)["disturbed"].verdict is Verdict.SUPPORTED


def test_an_episode_in_which_either_fails_in_its_own_way_counts_for_neither() -> None:
    """Each breaks a limit that the other keeps; then one of them alone does."""

    def played(place: float, angle: float) -> Episode:
        obs = np.array([[0.0] * 4, [place, 0.0, angle, 0.0]])
        return Episode(1, obs, np.zeros(2, np.int64), np.ones(2), obs, True, False)

    leaves, falls, keeps = played(3.0, 0.0), played(0.0, 0.3), played(0.0, 0.0)
    pairs = [(leaves, falls), (keeps, falls), (leaves, keeps), (keeps, keeps)]
    handovers = [Handover(champion, challenger, 0) for champion, challenger in pairs]
    own, other = failed_alone(handovers, [UP, TRACK], 100.0)
    assert [id(one) for one in own] == [id(handovers[1])]
    assert [id(one) for one in other] == [id(handovers[2])]


def test_one_that_drops_the_pole_from_everywhere_breaks_the_limit_and_loses_return(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    config = limited(config, UP)
    found = examine(config, snapshot, ServedPolicy.load(discrete_folder(tmp_path, -BALANCING), "2"), champion)
    claims = verdicts(found, config)
    assert {claim.verdict for claim in claims.values()} == {Verdict.REFUTED}
    assert found.limits[0].num_violating >= found.num_episodes - 2, "a draw near the end of an episode has no time to"
    assert claims["pole_stays_up"].bound is not None
    for claim in claims.values():
        replayed(claim, found, config, snapshot, ServedPolicy.load(tmp_path, "2"), champion)
    kept = found.counterexamples["shadow.consequences.disturbed"]
    again = replayed(claims["disturbed"], found, config, snapshot, ServedPolicy.load(tmp_path, "2"), champion)
    assert (
        f"from step {kept.step} on, the challenger comes to a return of {kept.challenger_return:.6g}" in again.finding
    )


def test_a_limit_that_is_called_like_another_claim_has_its_own(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    config = limited(config, UP.model_copy(update={"name": "noise"}))
    falling = ServedPolicy.load(discrete_folder(tmp_path, -BALANCING), "2")
    found = examine(config, snapshot, falling, champion)
    claims = verdicts(found, config)
    assert {"noise", "limits.noise"} <= set(claims)
    assert "noise is broken" in replayed(claims["limits.noise"], found, config, snapshot, falling, champion).finding
    assert "noise is broken" not in replayed(claims["noise"], found, config, snapshot, falling, champion).finding


def test_without_a_limit_the_report_says_so_and_the_claim_supports_nothing(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    few = limited(config, num_episodes=8, num_disturbed=8, num_noisy=8, max_pairs=8)
    found = examine(few, snapshot, ServedPolicy.load(discrete_folder(tmp_path, OTHER), "2"), champion)
    claim = verdicts(found, few)["limits"]
    assert (claim.verdict, claim.mandatory) == (Verdict.UNDECIDED, False)
    assert "no limit is declared" in claim.finding


def test_without_a_champion_the_limits_are_counted_on_its_own_episodes(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path
) -> None:
    found = examine(limited(config, UP), snapshot, champion, None)
    assert (found.return_difference, found.num_disturbed, found.limits[0].num_violating) == (None, 0, 0)
    assert [claim.id for claim in claims_of(found, config.shadow)] == ["shadow.consequences.pole_stays_up"]


@pytest.mark.parametrize("switch", ["examine", "snapshot"])
def test_what_is_not_examined_is_said_and_undecided(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, switch: str
) -> None:
    told = UP if switch == "examine" else UP.model_copy(update={"quantity": "info.no_such_key"})
    config = limited(config, told, examine=switch != "examine")
    (claim,) = claims_of(examine(config, snapshot, champion, champion), config.shadow)
    assert (claim.verdict, claim.mandatory) == (Verdict.UNDECIDED, True)
    assert "not examined" in claim.finding
    relaxed = limited(config, told, mandatory=False, examine=False)
    (claim,) = claims_of(examine(relaxed, snapshot, champion, champion), relaxed.shadow)
    assert not claim.mandatory


def test_decisions_along_an_episode_remember_as_the_episode_did(snapshot: Path, tmp_path: Path) -> None:
    policy = ServedPolicy.load(recurrent_folder(tmp_path), "1")
    episodes = Continuations(snapshot, 3).play(policy, [1, 2, 3, 4])
    for episode, decisions in zip(episodes, decisions_along(policy, episodes), strict=True):
        np.testing.assert_array_equal(episode.action, decisions.action)
        memory, steps = np.zeros((1, 2), np.float32), []
        for obs in episode.obs:
            outputs = policy.outputs(obs[None], memory)
            memory = outputs[STATE_OUT]
            steps.append(int(outputs["action"][0]))
        assert steps == episode.action.tolist()


def test_given_actions_come_first_and_the_rest_is_the_versions_own(
    champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    other = ServedPolicy.load(discrete_folder(tmp_path, -BALANCING))
    first = Continuations(snapshot, 3).play(champion, [5, 6, 7])
    given = [episode.action[:step] for episode, step in zip(first, (0, 9, 40), strict=True)]
    for episode, again, actions in zip(
        first, Continuations(snapshot, 2).play(other, [5, 6, 7], given), given, strict=True
    ):
        np.testing.assert_array_equal(episode.obs[: len(actions) + 1], again.obs[: len(actions) + 1])
        assert again.length < len(actions) + 20


def test_one_that_bears_less_noise_of_the_sensors_is_refused_by_it_and_the_episode_repeats(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    config = limited(config, UP)
    nervous = ServedPolicy.load(discrete_folder(tmp_path, VELOCITY), "2")
    found = examine(config, snapshot, nervous, champion)
    claims = verdicts(found, config)
    assert found.noisy is not None
    assert found.noisy.deviations == found.noisy.withstood / 2 > 0, "half of what the champion withstands"
    assert claims["noise"].verdict is Verdict.REFUTED, claims["noise"].finding
    assert f"seed {found.noisy.seed}" in claims["noise"].finding
    replayed(claims["noise"], found, config, snapshot, nervous, champion)
    kept = [name for name, claim in claims.items() if claim.verdict is Verdict.SUPPORTED]
    assert "pole_stays_up" in kept, "where sensors are exact it keeps the limit"

    play = Continuations(snapshot, 1).play
    observed = np.concatenate([one.obs for one in play(champion, config_seeds(config))])
    noise = [found.noisy.deviations * np.std(observed.astype(np.float64), axis=0)]
    assert found.noisy.seed is not None
    (held,), (fell,) = (play(one, [found.noisy.seed], noise=noise) for one in (champion, nervous))
    assert fell.episode_return < held.episode_return


def config_seeds(config: PolicyConfig) -> list[int]:
    """Those of the champion's episodes, the first of which are the simulated traffic's."""
    settings = config.shadow.consequences
    return [*config.shadow.seeds[: config.shadow.num_episodes], *settings.seeds][: settings.num_episodes]


def test_noise_is_the_same_for_a_seed_and_step_whatever_the_batch(champion: ServedPolicy, snapshot: Path) -> None:
    noise = [np.full(4, 0.05)] * 3
    together = Continuations(snapshot, 3).play(champion, [5, 6, 7], noise=noise)
    for episode, seed in zip(together, (5, 6, 7), strict=True):
        (alone,) = Continuations(snapshot, 1).play(champion, [seed], noise=noise[:1])
        np.testing.assert_array_equal(episode.action, alone.action)
    exact = Continuations(snapshot, 3).play(champion, [5, 6, 7])
    assert any(one.action.tolist() != other.action.tolist() for one, other in zip(together, exact, strict=True))


def test_noise_that_the_champion_cannot_bear_blames_nobody(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    fallen = ServedPolicy.load(discrete_folder(tmp_path, -BALANCING), "1")
    found = examine(limited(config, UP), snapshot, champion, fallen)
    claim = verdicts(found, config)["noise"]
    assert (claim.verdict, claim.mandatory) == (Verdict.UNDECIDED, False)
    assert "does not withstand" in claim.finding


def test_whole_episodes_that_earn_less_refuse_and_equals_do_not(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    falls = verdicts(examine(config, snapshot, loaded(tmp_path / "a", -BALANCING), champion), config)["whole"]
    equal = verdicts(examine(config, snapshot, loaded(tmp_path / "b", OTHER), champion), config)["whole"]
    assert (falls.verdict, falls.mandatory) == (Verdict.REFUTED, True)
    assert "most is lost on seed" in falls.finding
    assert equal.verdict is Verdict.SUPPORTED
    asked_nothing = config.promotion.model_copy(update={"require_not_worse": False})
    relaxed = config.model_copy(update={"promotion": asked_nothing})
    falls = verdicts(examine(relaxed, snapshot, loaded(tmp_path / "c", -BALANCING), champion), relaxed)["whole"]
    assert (falls.verdict, falls.mandatory) == (Verdict.REFUTED, False)


SHAKY_WORLD = """
import gymnasium, numpy as np

class Noise(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return self._seen(), {}

    def step(self, action):
        self.left -= 1
        return self._seen(), 1.0, False, self.left == 0, {}

    def _seen(self):
        return self.np_random.normal(size=4).astype(np.float32)
"""


def shaky_world(folder: Path) -> Path:
    """A snapshot of it."""
    (folder / "shaky.py").write_text(SHAKY_WORLD)
    take_snapshot(EnvironmentConfig(id="Noise", entry_point="shaky:Noise", path="."), folder, folder / "snapshot")
    return folder / "snapshot"


def test_actions_that_move_farther_are_refused_and_the_episode_moves_as_far_again(
    config: PolicyConfig, tmp_path: Path
) -> None:
    snapshot = shaky_world(tmp_path)
    calm, shaken = (ServedPolicy.load(continuous_folder(tmp_path / f"gain {gain}", gain), "1") for gain in (0.01, 5.0))
    found = examine(config, snapshot, shaken, calm)
    claim = verdicts(found, config)["travel"]
    assert claim.verdict is Verdict.REFUTED, claim.finding
    assert "actions move" in replayed(claim, found, config, snapshot, shaken, calm).finding


def test_continuous_actions_that_always_count_as_the_same_are_played_all_the_same(
    config: PolicyConfig, tmp_path: Path
) -> None:
    snapshot = shaky_world(tmp_path)
    calm, near = (ServedPolicy.load(continuous_folder(tmp_path / f"gain {gain}", gain), "1") for gain in (0.001, 0.003))
    found = examine(config, snapshot, near, calm)
    assert found.num_disagreements == 0
    assert found.travel is not None
    assert found.travel.challenger > 2 * found.travel.champion


def loaded(folder: Path, weights: np.ndarray) -> ServedPolicy:
    return ServedPolicy.load(discrete_folder(folder, weights), "2")


def test_seeds_of_all_parts_are_disjoint_and_as_many_as_are_played(config: PolicyConfig) -> None:
    settings = config.shadow.consequences
    places = [place for part in settings.parts for place in part]
    assert places == list(range(len(settings.seeds)))


@pytest.mark.parametrize("scores", ["stakes", "rarity", "both"])
def test_a_place_of_high_stakes_or_seldom_seen_is_drawn_as_often_as_its_chance_says(
    config: PolicyConfig, champion: ServedPolicy, snapshot: Path, scores: str
) -> None:
    """40 disagreements, one of which stands out: it is drawn far more often than once in 40 times, and weighs less."""
    special, count, num_draws = 17, 40, 4_000
    obs, logits = np.zeros((count, 4), np.float32), np.ones((count, 2), np.float32) * [1.0, 0.0]
    obs[special] = 3.0 if scores != "stakes" else 0.0
    logits[special, 0] = 9.0 if scores != "rarity" else 1.0
    episode = Episode(1, obs, np.zeros(count, np.int64), np.ones(count), obs, False, True)
    own = ShadowDecisions(np.zeros(count, np.int64), logits)
    other = ShadowDecisions(np.ones(count, np.int64), logits[:, ::-1])
    rarity = Rarity(np.random.default_rng(0).normal(size=(1_000, 4)))
    examination = _Examination(config, snapshot, champion, champion)
    drawn = [examination._draw(episode, own, other, np.arange(count), rarity) for _ in range(num_draws)]
    chance = float(probabilities(2.0 * (logits[:, 0] - logits[:, 1]), rarity(obs))[special])
    often = sum(step == special for step, _ in drawn)
    assert chance > 8 / count
    assert abs(often - num_draws * chance) < 4 * np.sqrt(num_draws * chance)
    weights = [weight for step, weight in drawn if step == special]
    np.testing.assert_allclose(weights, 1.0 / (chance * count))
    assert np.mean([weight for _, weight in drawn]) == pytest.approx(1.0, abs=0.1)


# --- limits of the configs there are ---


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_follows_is_counted_on_a_limit_of_every_shipped_config(
    path: Path, champion: ServedPolicy, tmp_path: Path
) -> None:
    config = load_config(path)
    take_snapshot(config.environment, ROOT, tmp_path)
    examination = _Examination(config, tmp_path, champion, champion)
    assert config.shadow.consequences.examine
    (episode,) = examination.continuations.play_at_random([1])
    counted = [broken(limit, episode, 0) for limit in examination.limits]
    assert counted
    assert all(0.0 <= share <= 1.0 for share in counted)


def test_a_new_users_config_has_limits_that_are_counted_on_what_follows(
    champion: ServedPolicy, snapshot: Path, tmp_path: Path
) -> None:
    """The config that the README shows, with fewer episodes."""
    path = tmp_path / "pole.yaml"
    path.write_text((ROOT / "README.md").read_text().split("```yaml\n")[1].split("```")[0])
    few = {"num_episodes": 8, "num_disturbed": 8, "num_noisy": 8, "max_pairs": 8}
    config = load_config(path, {f"shadow.consequences.{name}": count for name, count in few.items()})
    flawed = ServedPolicy.load(discrete_folder(tmp_path / "falls", -BALANCING), "2")
    found = examine(config, snapshot, flawed, champion)
    assert [one.name for one in found.limits] == ["cart_stays_on_track"]
    assert "cart_stays_on_track" in verdicts(found, config)
    assert "limits" not in verdicts(found, config)
