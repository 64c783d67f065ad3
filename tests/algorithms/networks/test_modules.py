"""The building blocks of the specification: shapes, bounds, initial weights, clear errors."""

import pytest
import torch
from torch.distributions import Normal

from loomrl.algorithms.networks.modules import (
    GaussianPolicyHead,
    LogitsHead,
    PolicyNetwork,
    StateEncoder,
    ValueHead,
)
from loomrl.errors import ConfigError


def test_policy_network_of_the_specification() -> None:
    network = PolicyNetwork({"state_dim": 64, "action_dim": 6, "encoder_dims": [256, 256]})
    distribution, value = network(torch.randn(5, 64))
    assert isinstance(distribution, Normal)
    assert distribution.mean.shape == (5, 6)
    assert value.shape == (5,)
    (distribution.log_prob(distribution.mean).sum() + value.sum()).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_log_std_is_bounded() -> None:
    head = GaussianPolicyHead(4, 2, log_std_bounds=(-1.0, 0.5))
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([-7.0, 7.0]))
    torch.testing.assert_close(head(torch.zeros(1, 4)).stddev, torch.tensor([[-1.0, 0.5]]).exp())


def test_weights_follow_from_the_generator_alone() -> None:
    def weights() -> torch.Tensor:
        encoder = StateEncoder(3, [8, 8], generator=torch.Generator().manual_seed(5))
        return torch.cat([parameter.detach().ravel() for parameter in encoder.parameters()])

    before = torch.random.get_rng_state()
    first = weights()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(123)
    assert torch.equal(weights(), first)


def test_weights_start_orthogonal() -> None:
    layer = StateEncoder(16, [16]).layers[0]
    torch.testing.assert_close(layer.weight @ layer.weight.T, 2 * torch.eye(16), atol=1e-5, rtol=0)
    assert not layer.bias.any()


def test_first_policy_is_nearly_uniform() -> None:
    probabilities = LogitsHead(64, 4)(torch.ones(1, 64)).softmax(-1)
    torch.testing.assert_close(probabilities, torch.full((1, 4), 0.25), atol=0.06, rtol=0)


def test_value_head_drops_its_last_dimension() -> None:
    assert ValueHead(4)(torch.zeros(7, 4)).shape == (7,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StateEncoder(0, [4]), "input_dim must be a positive whole number, found 0"),
        (lambda: StateEncoder(4, []), "hidden_dims is empty"),
        (lambda: StateEncoder(4, [4], "sigmoid"), "activation 'sigmoid' is unknown; allowed: tanh, relu"),
        (lambda: GaussianPolicyHead(4, -1), "action_dim must be"),
        (lambda: GaussianPolicyHead(4, 1, (2.0, -20.0)), "lower bound must be below"),
        (lambda: PolicyNetwork({"state_dim": 4}), "missing action_dim, encoder_dims"),
        (lambda: StateEncoder(4, [4])(torch.zeros(2, 5)), r"states of shape \(2, 5\) reached an encoder of width 4"),
    ],
)
def test_errors_name_what_is_wrong(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]
