"""Groups on the wire and back, and what is said of those that do not fit together."""

import json
import math
from typing import Any

import pytest

from loomrl.errors import ArtifactError
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.policies.sampling import TokenCompletion
from loomrl.language.policies.transformer import TransformerConfig
from loomrl.language.trajectory.wire import encode_group, parse_group
from tests.support.language_policies import wire_of


def group(**changed: Any) -> dict[str, Any]:
    return {
        "tokens": [[1, 5, 6, 2], [1, 5, 7]],
        "masks": [[-100, -100, 6, 2], [-100, -100, 7]],
        "scores": [1.0, 0.0],
    } | changed


def test_completions_become_what_trainers_expect() -> None:
    completions = [TokenCompletion([6, 2], [-0.1, -0.2], "stop"), TokenCompletion([7], [-0.3], "length")]
    made = TokenGroup.of_completions([1, 5], completions, [1.0, 0.0], policy_version=3, temperature=0.7)
    wire = wire_of(made)
    assert wire["tokens"] == [[1, 5, 6, 2], [1, 5, 7]]
    assert wire["masks"] == [[-100, -100, 6, 2], [-100, -100, 7]]
    assert wire["inference_logprobs"] == [[1.0, 1.0, -0.1, -0.2], [1.0, 1.0, -0.3]]
    assert TokenGroup.from_wire(parse_group(json.dumps(wire).encode()), 3) == made_whole(made)
    assert TokenGroup.from_wire(json.loads(encode_group(parse_group(json.dumps(wire).encode()))), 3) == made_whole(made)


def made_whole(made: TokenGroup) -> TokenGroup:
    return TokenGroup(**{**vars(made), "counted": [True] * len(made)})


def test_the_temperature_is_the_nearest_one() -> None:
    def temperatures(**changed: Any) -> list[float] | None:
        return TokenGroup.from_wire(group(**changed)).temperatures

    assert temperatures() == [1.0, 1.0]
    assert temperatures(group_overrides={"temperature": 0.5}) == [0.5, 0.5]
    assert temperatures(group_overrides={"temperature": 0.5}, generation_params={"temperature": 0.6}) == [0.6, 0.6]
    assert temperatures(generation_params={"temperature": 0.6}, overrides=[{"temperature": 0.0}, {}]) == [1.0, 0.6]


def test_samples_can_be_set_aside() -> None:
    assert TokenGroup.from_wire(group(overrides=[{"set_advantage_to_zero": True}, {}])).counted == [False, True]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scores": [1.0]}, "scores have lengths"),
        ({"masks": [[-100, -100, 6, 2]]}, "masks have lengths"),
        ({"masks": [[-100, -100, 6, 2], [-100, 7]]}, "masks have lengths"),
        ({"inference_logprobs": [[0.0] * 4, [0.0] * 4]}, "inference_logprobs have lengths"),
        ({"advantages": [[0.0] * 4]}, "advantages have lengths"),
        ({"overrides": [{}]}, "overrides have lengths"),
        ({"tokens": [], "masks": [], "scores": []}, "nothing to learn"),
        ({"tokens": [[1], [1]], "masks": [[-100], [-100]]}, "nothing to learn"),
        ({"masks": [[-100] * 4, [1, -100, -100]]}, "nothing is learnt"),
        ({"scores": [1.0, 1e39]}, r"1e\+39 is one of a group's scores"),
        ({"scores": [1.0, math.nan]}, "nan is one of a group's scores"),
        ({"advantages": [[0.0] * 4, [0.0, 0.0, -1e30]]}, "-1e.30 is one of a group's advantages"),
        (
            {"inference_logprobs": [[1.0, 1.0, -0.1, 1.0], [1.0, 1.0, -0.2]]},
            "1.0 is the log-probability of a token that is not masked, and those are at most 0",
        ),
        ({"inference_logprobs": [[1.0, 1.0, math.nan, 0.0], [1.0, 1.0, 0.0]]}, "nan is the log-probability"),
        ({"generation_params": {"temperature": "hot"}}, "temperature is 'hot'"),
        ({"generation_params": {"temperature": True}}, "temperature is True"),
        ({"generation_params": {"temperature": math.nan}}, "temperature is nan"),
        ({"overrides": [{}, {"temperature": -1.0}]}, "temperature is -1.0"),
        ({"group_overrides": {"temperature": 1e-50}}, "temperature is 1e-50; give 0, or a number from 0.0001 to 10000"),
    ],
)
def test_what_does_not_fit_together_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ArtifactError, match=said):
        TokenGroup.from_wire(group(**changed))


@pytest.mark.parametrize(
    ("tokens", "said"), [([1] * 25, "has 25 tokens"), ([1, 15], "from 1 to 15"), ([1, -3], "from -3 to 1")]
)
def test_what_a_policy_cannot_read_is_named(tokens: list[int], said: str) -> None:
    made = TokenGroup([tokens], [[False] + [True] * (len(tokens) - 1)], [1.0])
    with pytest.raises(ArtifactError, match=said):
        made.require_readable(TransformerConfig(vocabulary_size=15, max_tokens=24))
