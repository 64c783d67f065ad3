"""Limits a version carries in its manifest, kept at run time: another action, a fallback, or none at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.errors import ArtifactError
from loomrl.serving.decisions.choosing import Choices, Substitute, choose
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.policy.shield import CERTIFIED, Certified, ComponentLimit, ComponentLimits, NotAllowed, float_limits
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.history import records
from loomrl.system.files import read_json, sha256, write_json
from tests.support.inside import Inside
from tests.support.policies import continuous_folder, discrete_folder

OBS = np.array(
    [[0.5, 0.2, 0.0, 0.0], [1.8, 0.2, 0.0, 0.0]], np.float32
)  # the continuous policy does half of the first two
GENTLY = {"name": "gently", "quantity": "action[0]", "low": None, "high": 0.4}
NEAR = {"name": "near", "quantity": "observation[0]", "low": -1.0, "high": 1.0, "enforce": True}


def with_manifest(folder: Path, **changes: Any) -> Path:
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | changes)
    return folder


def continuous(folder: Path, **changes: Any) -> ServedPolicy:
    return ServedPolicy.load(with_manifest(continuous_folder(folder), **changes))


def decided(policy: ServedPolicy, obs: np.ndarray = OBS, substitute: Substitute | None = None) -> Choices:
    return choose(policy, obs, [False] * len(obs), lambda row: pytest.fail("nothing is drawn"), substitute=substitute)


# --- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 200])
def test_limits_hold_row_by_row(rows: int) -> None:
    free = np.full(3, np.inf)
    limits = ComponentLimits([ComponentLimit("a", 0, -1.0, 1.0), ComponentLimit("b", 2, 0.0, np.inf)], -free, free)
    values = np.tile(np.array([0.5, 1e9, 0.0]), (rows, 1))
    assert limits.outside(values) is None
    values[-1] = [0.5, 0.0, -1e-9]
    outside = limits.outside(values)
    assert outside is not None
    assert outside.tolist() == [False] * (rows - 1) + [True]
    assert limits.broken(values) == {rows - 1: "b"}
    values[0, 0] = np.nan
    assert limits.broken(values)[0] == "a"


@pytest.mark.parametrize("place", range(4))
def test_what_is_no_number_is_beyond_a_limit_wherever_it_stands(place: int) -> None:
    limits = ComponentLimits([ComponentLimit("a", 1, -1.0, 1.0)], np.full(2, -np.inf), np.full(2, np.inf))
    values = np.zeros((4, 2))
    values[place] = np.nan
    assert limits.broken(values) == {place: "a"}
    values[place] = np.nan, 0.0  # where nothing is limited it is none of a limit's business
    assert limits.outside(values) is None


def test_bounds_are_rounded_inwards() -> None:
    """0.1 is no number of float32: the nearest one is above it."""
    low, high = float_limits(np.array([-0.1, 0.25]), np.array([0.1, 0.5]), np.float32)
    nearest = np.float32(0.1)
    assert float(nearest) > 0.1 > high[0] == np.nextafter(nearest, np.float32(0))
    assert low[0] == -high[0]
    assert (low[1], high[1]) == (0.25, 0.5)
    limits = ComponentLimits([ComponentLimit("a", 0, -0.1, 0.1)], np.full(1, -1, np.float32), np.full(1, 1, np.float32))
    assert limits.outside(limits.clip(np.array([0.3], np.float32))[None]) is None


def test_limits_that_nothing_satisfies_are_refused(tmp_path: Path) -> None:
    above = {"name": "above", "quantity": "action[0]", "low": 2.0, "high": None}
    with pytest.raises(ArtifactError, match="constraint above: nothing satisfies it"):
        continuous(tmp_path, constraints=[above])
    with pytest.raises(ArtifactError, match=r"constraint elsewhere: .* 2 components: action\[0\] ... action\[1\]"):
        continuous(tmp_path, constraints=[GENTLY | {"name": "elsewhere", "quantity": "action[7]"}])


def test_a_version_without_limits_has_no_shield(tmp_path: Path) -> None:
    assert ServedPolicy.load(discrete_folder(tmp_path)).guard is None
    for constraint in (NEAR | {"enforce": None}, NEAR | {"enforce": False}, GENTLY | {"quantity": "reward"}):
        folder = with_manifest(discrete_folder(tmp_path), constraints=[constraint])
        assert ServedPolicy.load(folder).guard is None


# --- what is done -----------------------------------------------------------------------------------------------


def test_a_continuous_action_is_clipped_into_its_limits(tmp_path: Path) -> None:
    choices = decided(continuous(tmp_path, constraints=[GENTLY]))
    assert choices.action[0].tolist() == pytest.approx([0.25, 0.1])
    assert choices.action[1].tolist() == pytest.approx([0.4, 0.1])
    assert float(choices.action[1][0]) <= 0.4
    assert choices.shield == [None, {"chosen": [pytest.approx(0.9), pytest.approx(0.1)],
                                     "by": "constraint gently", "fallback": None}]  # fmt: skip
    assert choices.propensity == [1.0, 1.0]


def test_bounds_of_the_action_space_hold_whatever_the_graph_does(tmp_path: Path) -> None:
    """This graph clips to [-1, 1], but the actions may be within [-0.2, 0.2] only."""
    folder = continuous_folder(tmp_path)
    manifest = read_json(folder / "manifest.json")
    manifest["environment"]["action"] |= {"low": -0.2, "high": 0.2}
    choices = decided(ServedPolicy.load(with_manifest(folder, **manifest)))
    assert np.abs(choices.action.astype(np.float64)).max() <= 0.2
    assert [mark and mark["by"] for mark in choices.shield] == ["bounds", "bounds"]


def test_a_fallback_acts_instead(tmp_path: Path) -> None:
    policy = continuous(tmp_path / "policy", constraints=[GENTLY])
    calm = ServedPolicy.load(continuous_folder(tmp_path / "calm", gain=0.1), "7")
    choices = decided(policy, substitute=Substitute(calm))
    assert choices.action[0].tolist() == pytest.approx([0.25, 0.1])
    assert choices.action[1].tolist() == pytest.approx([0.18, 0.02])
    assert choices.shield[1] is not None
    assert (choices.shield[1]["by"], choices.shield[1]["fallback"]) == ("constraint gently", "7")


def test_a_choice_that_is_not_allowed_is_not_made(tmp_path: Path) -> None:
    limit = {"name": "only_left", "quantity": "action", "low": None, "high": 0.0}
    policy = ServedPolicy.load(with_manifest(discrete_folder(tmp_path), constraints=[limit]))
    left, right = np.array([[0, 0, -0.5, 0]], np.float32), np.array([[0, 0, 0.5, 0]], np.float32)
    assert decided(policy, left).shield == [None]
    with pytest.raises(NotAllowed, match=r"action 1 is not allowed \(constraint only_left\), and there is no fallback"):
        decided(policy, right)
    choices = decided(policy, right, Substitute(action=np.int64(0)))
    assert choices.action.tolist() == [0]
    assert choices.shield == [{"chosen": 1, "by": "constraint only_left", "fallback": "constant"}]


def test_beyond_a_limit_on_observations_the_policy_does_not_decide(tmp_path: Path) -> None:
    policy = continuous(tmp_path, constraints=[NEAR])
    with pytest.raises(NotAllowed, match="constraint near"):
        decided(policy)
    assert decided(policy, OBS[:1]).shield == [None]
    calm = Substitute(action=np.zeros(2, np.float32))
    rng = np.random.default_rng(3)
    choices = choose(policy, OBS, [True, True], lambda row: rng, substitute=calm)
    assert choices.explored == [True, False]
    assert choices.action[1].tolist() == [0.0, 0.0]
    assert choices.propensity[1] == 1.0
    assert choices.marks["asked_to_explore"] == [True, True], (
        "else the second would look like one that nobody asked for"
    )


# --- certified --------------------------------------------------------------------------------------------------

BOXES = Certified(np.array([[0.4, 0.0, -1.0, -1.0], [9.0, 9.0, 9.0, 9.0]]),
                  np.array([[0.6, 0.5, 1.0, 1.0], [9.5, 9.5, 9.5, 9.5]]))  # fmt: skip


def certified(folder: Path, on_uncertified: str) -> ServedPolicy:
    continuous_folder(folder)
    (folder / CERTIFIED).write_bytes(BOXES.to_bytes())
    described = {"sha256": sha256(BOXES.to_bytes()), "on_uncertified": on_uncertified}
    return ServedPolicy.load(with_manifest(folder, certified=described))


def test_decisions_are_marked_as_certified_or_not(tmp_path: Path) -> None:
    choices = decided(certified(tmp_path, "mark"))
    assert choices.marks == {"certified": [True, False]}
    assert choices.shield == [None, None]


def test_a_fallback_acts_where_nothing_is_certified(tmp_path: Path) -> None:
    policy = certified(tmp_path, "fallback")
    choices = decided(policy, substitute=Substitute(action=np.zeros(2, np.float32)))
    assert choices.marks == {"certified": [True, False]}
    assert choices.shield[0] is None
    assert choices.shield[1] is not None
    assert (choices.shield[1]["by"], choices.shield[1]["fallback"]) == ("not certified", "constant")
    with pytest.raises(NotAllowed, match="not certified"):
        decided(policy)


def test_what_is_certified_is_what_the_manifest_names(tmp_path: Path) -> None:
    certified(tmp_path, "mark")
    (tmp_path / CERTIFIED).write_bytes(BOXES.to_bytes()[:-1] + b"\0")
    with pytest.raises(ArtifactError, match="is not what its manifest names as certified"):
        ServedPolicy.load(tmp_path)
    (tmp_path / CERTIFIED).unlink()
    with pytest.raises(ArtifactError, match="is not what its manifest names as certified"):
        ServedPolicy.load(tmp_path)


# --- in a server ------------------------------------------------------------------------------------------------


@pytest.fixture
def server(loomrl_home: Path, tmp_path: Path) -> Iterator[Inside]:
    folder = continuous_folder(tmp_path / "champion", name="cartpole")
    calm = continuous_folder(tmp_path / "calm", gain=0.1, name="cartpole")
    with_manifest(folder, constraints=[GENTLY, NEAR | {"high": 2.0}])
    settings = ServerSettings("cartpole", folders={"champion": folder, "challenger": calm})
    with Inside(settings) as inside:
        yield inside


def fall_back(server: Inside, **fallback: Any) -> None:
    answer = server.ask("PUT", "/plan", {"fallback": fallback, "person": "Ada", "reason": "test"})
    assert answer.is_success, answer.text
    server.context.roles.refresh()


def last(server: Inside) -> dict[str, Any]:
    return [entry for entry in records("cartpole") if entry["kind"] == "decision"][-1]


def test_what_was_prevented_is_answered_recorded_and_counted(server: Inside, tmp_path: Path) -> None:
    far, beyond = [1.8, 0.2, 0.0, 0.0], [3.0, 0.2, 0.0, 0.0]
    told = server.decide("a", far).json()
    assert told["action"] == pytest.approx([0.4, 0.1])
    assert told["shield"]["by"] == last(server)["shield"]["by"] == "constraint gently"
    refused = server.decide("a", beyond)
    assert refused.status_code == 422
    assert "(constraint near), and there is no fallback" in refused.json()["error"]

    fall_back(server, action=[0.0, 0.0])
    assert server.decide("a", far).json()["action"] == [0.0, 0.0]
    assert server.decide("a", beyond).json()["action"] == [0.0, 0.0]
    assert last(server)["shield"]["by"] == "constraint near"
    assert last(server)["shield"]["fallback"] == "constant"
    assert (last(server)["role"], last(server)["version"]) == ("champion", str(tmp_path / "champion"))

    fall_back(server, version=str(tmp_path / "calm"))
    assert server.decide("a", far).json()["action"] == pytest.approx([0.18, 0.02])
    assert last(server)["shield"]["fallback"] == str(tmp_path / "calm")
    counted = server.ask("GET", "/metrics").text
    version = f'version="{tmp_path / "champion"}"'
    assert f'loomrl_prevented_total{{by="constraint gently",fallback="none",{version}}} 1.0' in counted
    assert f'loomrl_prevented_total{{by="constraint gently",fallback="constant",{version}}} 1.0' in counted


def test_several_at_once(server: Inside) -> None:
    requests = [{"agent_id": f"a{index}", "observation": [value, 0.2, 0.0, 0.0]} for index, value in
                enumerate((0.5, 1.8, 0.1))]  # fmt: skip
    decisions = server.ask("POST", "/decide", {"requests": requests}).json()["decisions"]
    assert [one["shield"] and one["shield"]["by"] for one in decisions] == [None, "constraint gently", None]
    logged = [entry for entry in records("cartpole") if entry["kind"] == "decision"][-3:]
    assert [entry["shield"] for entry in logged] == [one["shield"] for one in decisions]
    assert [one["action"][0] for one in decisions] == pytest.approx([0.25, 0.4, 0.05])
