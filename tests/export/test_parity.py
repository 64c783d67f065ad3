"""Graph and network over every kind of space, and the rule that tells a mismatch from a near tie."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.environment.text import TextBox
from loomrl.environment.wrappers.flat import FlatBox
from loomrl.export import formats
from loomrl.export.observations import random_observations
from loomrl.export.parity import Exported, Outputs, _mismatches, prove_parity
from tests.support.served import served

UNBOUNDED = Box(-np.inf, np.inf, (3,), np.float32)
SPACES: list[tuple[gymnasium.Space[Any], gymnasium.Space[Any]]] = [
    (UNBOUNDED, Discrete(4)),
    (UNBOUNDED, Discrete(3, start=5)),
    (Box(-np.inf, np.inf, (11,), np.float64), Box(-1, 1, (3,), np.float32)),
    (Box(-1, 1, (2, 3), np.float32), Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)),
    (Box(0, 255, (8, 8, 1), np.uint8), Discrete(2)),
    (Discrete(16), Discrete(4)),
    (Discrete(5, start=2), Box(-np.inf, np.inf, (1,), np.float32)),
    (UNBOUNDED, Box(-1, 1, (2, 2), np.float32)),
    (UNBOUNDED, MultiDiscrete([2, 3, 4], start=[0, 5, -1])),
    (UNBOUNDED, MultiBinary([2, 3])),
    (
        FlatBox(
            Dict(
                camera=Box(0, 255, (9, 8, 3), np.uint8),
                arm=Tuple([Box(-1.0, 1.0, (2,), np.float32), Discrete(3, start=4)]),
                dials=MultiDiscrete([2, 5], start=[1, -2]),
            )
        ),
        Discrete(3),
    ),
]


def network_of(
    observation: gymnasium.Space[Any], action: gymnasium.Space[Any], normalize: bool, squash: bool = False
) -> ActorCriticPolicy:
    generator = torch.Generator().manual_seed(3)
    policy = ActorCriticPolicy.for_spaces(
        "ppo", observation, action, (64, 64), "tanh", normalize, generator, squash_actions=squash
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    if policy.normalizer is not None:
        rng = np.random.default_rng(5)
        policy.normalizer.update(rng.normal(1.0, 3.0, (100, policy.preprocessor.dim)))
    return policy.eval()


def observations_of(space: gymnasium.Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    space.seed(1)
    visited = np.stack([np.asarray(space.sample()) for _ in range(64)])
    return visited, random_observations(visited, space, 1_000)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("observation", "action"), SPACES, ids=lambda space: str(space)[:40])
def test_graph_and_network_agree(
    observation: gymnasium.Space[Any], action: gymnasium.Space[Any], normalize: bool
) -> None:
    network = network_of(observation, action, normalize)
    graph = served(network)
    visited, random = observations_of(observation)
    assert random.dtype == visited.dtype == graph.dtype
    report = prove_parity(network, graph, visited, random, 1e-4)
    assert report.passed, report
    actions = graph(random)
    own = network(random)
    np.testing.assert_allclose(actions, own, atol=1e-5)
    assert all(action.contains(np.asarray(one, dtype=action.dtype)) for one in actions)


def test_squashed_actions_agree_and_stay_within_their_bounds() -> None:
    space = Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)
    network = network_of(UNBOUNDED, space, True, squash=True)
    graph = served(network)
    visited, random = observations_of(UNBOUNDED)
    assert prove_parity(network, graph, visited, random, 1e-4).passed
    assert all(space.contains(one.astype(np.float64)) for one in graph(random * 1e6))


@pytest.mark.parametrize(("observation", "action"), SPACES[:4], ids=lambda space: str(space)[:40])
def test_the_same_bits_for_every_batch_size(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
    graph = served(network_of(observation, action, True))
    _, random = observations_of(observation)
    whole = graph.answer(random[:512])
    for size in (*range(1, 34), 63, 64, 65, 128, 500):
        part = graph.answer(random[:size])
        for name, output in part.outputs.items():
            assert output.tobytes() == whole.outputs[name][:size].tobytes(), (name, size)


def test_a_graph_of_other_weights_fails() -> None:
    network = network_of(UNBOUNDED, Discrete(4), False)
    graph = served(network)
    with torch.no_grad():
        next(network.actor.parameters()).add_(0.05)
    visited, random = observations_of(UNBOUNDED)
    report = prove_parity(network, graph, visited, random, 1e-4)
    assert not report.passed
    assert report.action_mismatches > 0
    assert report.max_scaled_difference["logits"] > 1e-4


class Spoilt:
    """A graph whose action is changed by `spoil`."""

    def __init__(self, graph: Exported, spoil: Callable[[np.ndarray], np.ndarray]) -> None:
        self._graph, self._spoil = graph, spoil

    def outputs(self, obs: np.ndarray, memory: np.ndarray | None = None, /) -> Outputs:
        outputs = dict(self._graph.outputs(obs, memory))
        return outputs | {"action": self._spoil(outputs["action"])}


NARROW = Box(np.float32([-2e-5, -1.0, 1000.0]), np.float32([3e-5, 1.0, 1000.1]))


def exported(network: ActorCriticPolicy, form: str) -> Exported:
    if form == "onnx":
        return served(network)
    return formats.read(formats.build(network, form), form, network.output_names)


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("component", [0, 1, 2])
def test_an_action_is_held_to_a_share_of_its_range(form: str, squash: bool, component: int) -> None:
    network = network_of(UNBOUNDED, NARROW, False, squash)
    if not squash:
        with torch.no_grad():
            network.head.mean.weight.mul_(torch.tensor([[1e-4], [1.0], [1.0]]))
            network.head.mean.bias.copy_(torch.tensor([0.0, 0.0, 1000.05]))
    graph = exported(network, form)
    visited, random = observations_of(UNBOUNDED)
    assert prove_parity(network, graph, visited, random, 1e-4).passed
    middle = (NARROW.low[component] + NARROW.high[component]) / 2

    def mirrored(action: np.ndarray) -> np.ndarray:
        changed = action.copy()
        changed[:, component] = 2 * middle - changed[:, component]
        return changed

    report = prove_parity(network, Spoilt(graph, mirrored), visited, random, 1e-4)
    assert not report.passed
    assert report.max_scaled_difference["action"] > 1e-3


def test_a_wide_range_of_actions_loosens_nothing() -> None:
    network = network_of(UNBOUNDED, Box(-1e4, 1e4, (1,), np.float32), False)
    graph = served(network)
    visited, random = observations_of(UNBOUNDED)
    assert prove_parity(network, graph, visited, random, 1e-4).passed
    assert not prove_parity(network, Spoilt(graph, lambda action: action + 0.01), visited, random, 1e-4).passed


def test_an_action_without_any_range_is_that_action() -> None:
    network = network_of(UNBOUNDED, Box(np.float32([0.0, -1.0]), np.float32([0.0, np.inf])), False)
    graph = served(network)
    visited, random = observations_of(UNBOUNDED)
    assert prove_parity(network, graph, visited, random, 1e-4).passed
    assert not prove_parity(network, Spoilt(graph, lambda action: action + 1e-6), visited, random, 1e-4).passed


def mismatches(expected: Outputs, found: Outputs, limit: float, space: gymnasium.Space[Any]) -> tuple[int, int]:
    """Without and with a near tie."""
    unexplained, explained = _mismatches(expected, found, limit, space)
    return unexplained, int(explained.sum())


def test_only_a_tie_within_the_limit_excuses_another_action() -> None:
    logits = np.array([[1.0, 1.0 + 1e-5], [1.0, 1.0 + 1e-3], [0.0, 5.0]])
    expected = {"action": np.array([1, 1, 1]), "logits": logits}
    space = Discrete(2)
    assert mismatches(expected, {"action": np.array([0, 1, 1])}, 1e-4, space) == (0, 1)
    assert mismatches(expected, {"action": np.array([1, 0, 1])}, 1e-4, space) == (1, 0)
    assert mismatches(expected, {"action": np.array([0, 0, 0])}, 1e-4, space) == (2, 1)


def test_a_tie_excuses_its_own_component_only() -> None:
    logits = np.array([[1.0, 1.0 + 1e-5, 0.0, 2.0, 4.0]] * 2)  # a tie in the first component, none in the second
    expected = {"action": np.array([[1, 2], [1, 2]]), "logits": logits}
    assert mismatches(expected, {"action": np.array([[0, 2], [0, 1]])}, 1e-4, MultiDiscrete([2, 3])) == (1, 1)
    bits = {"action": np.array([[1, 1], [1, 1]]), "logits": np.array([[1e-5, 3.0], [1e-5, 3.0]])}
    assert mismatches(bits, {"action": np.array([[0, 1], [1, 0]])}, 1e-4, MultiBinary(2)) == (1, 1)


def test_of_two_texts_the_first_byte_that_differs_decides() -> None:
    tie, clear = [1.0 + 1e-5, 1.0], [5.0, 0.0]
    expected = {
        "action": np.array([[65, 66, 0], [65, 66, 0]], np.uint8),
        "logits": np.array([[clear, tie, clear], [clear, clear, tie]]),
    }
    space = TextBox(3)
    assert mismatches(expected, {"action": np.array([[65, 67, 68], [65, 66, 0]])}, 1e-4, space) == (0, 1)
    assert mismatches(expected, {"action": np.array([[65, 66, 0], [65, 67, 68]])}, 1e-4, space) == (1, 0)
    assert mismatches(expected, {"action": np.array([[66, 66, 0], [65, 66, 69]])}, 1e-4, space) == (1, 1)


def test_random_observations_stay_in_the_space_and_repeat() -> None:
    for observation, _ in SPACES:
        visited, random = observations_of(observation)
        assert all(observation.contains(np.asarray(one, dtype=observation.dtype)) for one in random[:100])
        np.testing.assert_array_equal(random, random_observations(visited, observation, 1_000))
