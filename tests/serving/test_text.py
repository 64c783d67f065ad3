"""What serving knows of texts: prompts as JSON, answers that people name, and that nothing is drawn."""

from typing import Any

import numpy as np
import pytest
import torch

from loomrl.environment.text import TextBox, encode_text
from loomrl.errors import ArtifactError
from loomrl.language.algorithms.policy import TextPolicy
from loomrl.promotion.comparison.off_policy.log import CannotEstimate
from loomrl.promotion.comparison.off_policy.ratios import require_same_actions
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.decisions.actions import check_action
from loomrl.serving.decisions.packing import packed
from loomrl.serving.decisions.requests import observation_arrays
from loomrl.serving.policy.distance import action_distance
from loomrl.serving.policy.exploration import require_explorable, require_fit
from loomrl.serving.policy.model import ServedPolicy
from loomrl.system.http.problems import Problem
from tests.support.served import served


@pytest.fixture(scope="module")
def policy() -> ServedPolicy:
    """Texts of 5 bytes in, of 3 bytes out."""
    return served(
        TextPolicy.for_spaces(
            "grpo", TextBox(5), TextBox(3), generator=torch.Generator().manual_seed(1), width=8, num_layers=1
        )
    )


@pytest.mark.parametrize("text", ["", "12+3=", "äö"])
def test_a_text_is_read_as_its_bytes(policy: ServedPolicy, text: str) -> None:
    rows = observation_arrays(packed([text, encode_text(text, 5).tolist()], policy), policy)
    assert rows.dtype == np.uint8
    np.testing.assert_array_equal(rows, np.stack([encode_text(text, 5)] * 2))


@pytest.mark.parametrize("value", ["123456", "ääö", "a\0b", None, {"text": "a"}, ["a", "b"], True])
def test_what_is_no_such_text_is_refused_with_its_place(policy: ServedPolicy, value: Any) -> None:
    with pytest.raises(Problem, match=r"^requests\[1\]: `observation` (must be a text|has \d+ bytes of UTF-8)"):
        packed(["1", value], policy)


def test_bytes_after_the_end_are_refused(policy: ServedPolicy) -> None:
    good, bad = [49, 0, 0, 0, 0], [49, 0, 50, 0, 0]
    for values in ([good, bad], np.array([good, bad], np.uint8)):
        with pytest.raises(Problem, match=r"^requests\[1\]: `observation` has bytes after its end"):
            packed(values, policy)
    array = np.array([good, good], np.uint8)
    assert packed(array, policy) is array


def test_people_name_answers_by_their_bytes(policy: ServedPolicy) -> None:
    action = check_action([52, 54, 0], policy)
    assert (action.dtype, action.tolist()) == (np.uint8, [52, 54, 0])
    for wrong in ([52, 54], [52, 54, 256], [52, 54, -1], [52, 0, 54], "46"):
        with pytest.raises(Problem):
            check_action(wrong, policy)


def test_answers_are_alike_to_the_letter_or_not_at_all(policy: ServedPolicy) -> None:
    first = np.array([[52, 54, 0], [52, 54, 0]], np.uint8)
    second = np.array([[52, 54, 0], [52, 55, 0]], np.uint8)
    assert action_distance(first, second, policy).tolist() == [0.0, 1.0]


def test_nothing_is_drawn(policy: ServedPolicy) -> None:
    require_fit(policy)
    require_explorable(policy, [False, False])
    with pytest.raises(Problem, match="`explore` must be false for p"):
        require_explorable(policy, [False, True])
    exploring = served(
        TextPolicy.for_spaces("grpo", TextBox(2), TextBox(1), generator=torch.Generator().manual_seed(1), width=8)
    )
    for settings in (ExplorationConfig(share=0.1), ExplorationConfig(kind="epsilon")):
        exploring.exploration = settings
        with pytest.raises(ArtifactError, match="p cannot explore"):
            require_fit(exploring)


def test_a_log_of_texts_tells_nothing_of_other_answers(policy: ServedPolicy) -> None:
    with pytest.raises(CannotEstimate, match="compare the versions live"):
        require_same_actions(policy, policy)
