"""What two versions did, side by side: returns, costs and limits from the audit log."""

from typing import Any

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.live import Difference, LiveComparison, compare_live
from loomrl.promotion.comparison.window import WindowEpisode, read_window
from loomrl.safety.config import ConstraintConfig
from loomrl.storage.audit.log import AuditLog
from tests.support.live import decide, play, reward
from tests.support.side_by_side import dealt, lived

POLE = ConstraintConfig(name="pole", quantity="observation[2]", low=-0.2, high=0.2)
UNSEEN = ConstraintConfig(name="unseen", quantity="reward", low=0.0)


def played(versions: str, total: dict[str, float] | None = None, **changes: Any) -> list[WindowEpisode]:
    """An episode each of agents that were dealt these versions."""
    earned = total or {}
    runs = [(version, [(10.0 * n, 5.0, earned.get(version, 1.0))]) for n, version in enumerate(versions)]
    return [one for n, run in enumerate(runs) for one in lived(f"agent {n}", *run, **changes)]


def compared(episodes: list[WindowEpisode], on: str | None = None, **config: Any) -> LiveComparison:
    settings = ComparisonConfig.model_validate(config)
    return compare_live(episodes, ("1", "2"), [POLE, UNSEEN], settings, (0.0, 10.0), on)


def both(number: int, seed: int = 1) -> str:
    return "".join(dealt(np.random.default_rng(seed), number))


def log_both(number: int, lengths: dict[str, int], **changes: Any) -> None:
    """Episodes of CartPole by agents that were dealt either version; the second lets the pole fall."""
    log = AuditLog("cartpole")
    for agent, version in enumerate(both(number)):
        angles = [0.0 if version == "1" or step != 1 else 0.5 for step in range(lengths[version])]
        told = {"experiment": "e", "dealt": version, "shares": {"1": 0.5, "2": 0.5}}
        play(log, "one", angles, f"agent {agent}", version=version, **told, **changes)


def test_a_better_version_is_found_and_a_worse_one(loomrl_home: object) -> None:
    log_both(240, {"1": 3, "2": 7})
    found = compared(read_window("cartpole", {}, []).episodes)
    returns, limit = found.differences
    assert (returns.quantity, returns.champion_mean, returns.challenger_mean, returns.finding) == (
        "reward", 3.0, 7.0, "better",
    )  # fmt: skip
    assert 0.0 < returns.low < 4.0 < returns.high
    assert (limit.quantity, limit.champion_mean, limit.challenger_mean, limit.finding) == (
        "limits.pole", 0.0, 1.0, "worse",
    )  # fmt: skip
    assert returns.num_champion + returns.num_challenger == 240
    assert (found.not_compared["limits.unseen"], found.refused) == ("decisions do not show reward", None)


def test_costs_are_told_by_feedback_and_lie_in_a_range(loomrl_home: object) -> None:
    log = AuditLog("cartpole")
    for agent, version in enumerate(both(200)):
        told = {"experiment": "e", "dealt": version, "shares": {"1": 0.5, "2": 0.5}}
        decision = decide(log, f"agent {agent}", "one", [0.0] * 4, version, **told)
        reward(log, decision, f"agent {agent}", "one", 1.0, ended=True, cost=5.0 if version == "1" else 1.0)
    episodes = read_window("cartpole", {}, []).episodes
    assert "set `cost_range`" in compared(episodes).not_compared["cost"]
    cost = compared(episodes, on="cost", cost_range=(0.0, 8.0)).of("cost")
    assert cost is not None
    assert (cost.champion_mean, cost.challenger_mean, cost.finding) == (5.0, 1.0, "better")


def test_without_feedback_an_episode_is_over_when_its_agent_begins_another(loomrl_home: object) -> None:
    log = AuditLog("cartpole")
    for number in ("one", "two"):
        for agent, version in enumerate(both(100)):
            told = {"experiment": "e", "dealt": version, "shares": {"1": 0.5, "2": 0.5}}
            for angle in (0.0, 0.0 if version == "1" else 0.5):
                decide(log, f"agent {agent}", number, [0.0, 0.0, angle, 0.0], version, **told)
    limit = compared(read_window("cartpole", {}, []).episodes).of("limits.pole")
    assert limit is not None
    assert (limit.champion_mean, limit.challenger_mean, limit.finding) == (0.0, 1.0, "worse")


def test_episodes_without_an_experiment_are_not_side_by_side(loomrl_home: object) -> None:
    log = AuditLog("cartpole")
    for number in range(50):
        play(log, f"{number}", [0.0] * 3, f"agent {number}", version="12"[number % 2])
    found = compared(read_window("cartpole", {}, []).episodes)
    assert found.refused == (
        "no experiment dealt agents to both 1 and 2: begin one with `loomrl plan split --version 2 --fraction 0.5`"
    )
    assert {one.finding for one in found.differences} == {"undecided"}


def test_what_an_agent_asked_for_when_it_began_separates_explored_episodes() -> None:
    others = played(both(40), {"2": 9.0}, asked=[True], explored=[True], experiment="another")
    alike = played(both(30))
    plain, explored = (compared(alike + others, explored=wanted).differences[0] for wanted in (False, True))
    assert (plain.num_champion + plain.num_challenger, plain.finding) == (30, "undecided")
    assert (explored.num_champion + explored.num_challenger, explored.finding) == (40, "better")


def test_values_outside_of_the_range_count_as_its_end_and_are_counted() -> None:
    found = compared(played(both(20), {"1": 4.0, "2": 90.0})).of("reward")
    assert found is not None
    assert (found.num_clipped, found.challenger_mean) == (both(20).count("2"), 90.0)
    assert found.high <= 10.0


def test_a_rare_ruin_beyond_the_range_is_not_called_better() -> None:
    """Most agents of the challenger earn more; one in 20 loses so much that their mean is lower."""
    episodes = []
    for agent, version in enumerate(both(400)):
        earned = 2.0 if version == "1" else (-500.0 if agent % 20 == 0 else 8.0)
        episodes += lived(f"agent {agent}", version, [(10.0 * agent, 5.0, earned)])
    found = compared(episodes).of("reward")
    assert found is not None
    assert found.challenger_mean is not None
    assert found.champion_mean is not None
    assert found.challenger_mean < found.champion_mean
    assert (found.num_flattered, found.finding) == (found.num_clipped, "undecided")
    assert found.num_flattered > 0
    milder = compared(played(both(40), {"2": 90.0})).of("reward")
    assert milder is not None
    assert (milder.num_flattered, "num_flattered" in milder.to_json()) == (0, False)


@pytest.mark.parametrize(("earned", "span"), [(-1000.0, (-500.0, 0.0)), (-50.0, (0.0, 500.0)), (900.0, (0.0, 500.0))])
def test_what_has_not_ended_is_neither_better_nor_worse_than_what_lies_outside_of_the_range(
    earned: float, span: tuple[float, float]
) -> None:
    """Versions are equal; the challenger's episodes take longer."""
    rng = np.random.default_rng(1)
    episodes = []
    for agent, version in enumerate(both(100)):
        total = None if version == "2" else earned + 30.0 * float(rng.standard_normal())
        episodes += lived(f"agent {agent}", version, [(10.0 * agent, 5.0, total)])
    (found,) = compare_live(episodes, ("1", "2"), [], ComparisonConfig(), span).differences
    assert (found.num_unfinished, found.finding) == (both(100).count("2"), "undecided")


def test_the_level_is_divided_among_what_is_compared() -> None:
    episodes = played(both(200), {"1": 3.0, "2": 7.0})
    every, one = (compared(episodes, on=on).of("reward") for on in (None, "reward"))
    assert every is not None
    assert one is not None
    assert every.low < one.low


def test_a_setting_without_a_meaning_is_accepted_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="champion_episodes has no meaning any more"):
        assert ComparisonConfig(champion_episodes=9).champion_episodes == 9


def test_documents_from_before_agents_were_counted_are_readable() -> None:
    told = {"quantity": "reward", "better": "higher", "least": 0.0, "greatest": 1.0, "num_clipped": 0}
    counts = {"num_champion": 30, "num_challenger": 30, "num_pairs": 30, "champion_mean": 0.2, "challenger_mean": 0.9}
    assert Difference.model_validate(told | counts | {"low": 0.1, "high": 0.9}).finding == "better"
    assert Difference.model_validate(told | counts | {"low": -0.1, "high": 0.9}).finding == "undecided"


def test_unknown_quantities_are_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'speed' cannot be compared; known: reward, cost, limits.pole"):
        compared(played("1"), on="speed")
    with pytest.raises(ConfigError, match="'cost' cannot be compared: no feedback tells a `cost`"):
        compared(played("1"), on="cost")


def test_a_range_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="return_range .* must go from the least to the greatest"):
        ComparisonConfig(return_range=(1.0, 1.0))


def test_bounds_that_contradict_each_other_say_nothing() -> None:
    """All agents of the one version came before all of the other: chance alone does not deal so."""
    found = compared(played("1" * 50 + "2" * 50, {"1": 5.0, "2": 5.0}))
    returns = found.differences[0]
    assert (returns.low, returns.high, returns.finding) == (-10.0, 10.0, "undecided")
    assert "bounds contradict each other: means differ in reward by at least 3.16266 and at most -3.16266" in (
        found.refused or ""
    )
