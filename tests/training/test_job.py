"""What a training offers to an algorithm's `build`."""

from typing import Any

import pytest

from loomrl.algorithms.base import TrainingContext
from loomrl.algorithms.peers import LearnerGroup
from loomrl.algorithms.plugin import accepted_arguments

CONTEXT, PEERS = TrainingContext(segment_env_steps=3), LearnerGroup()


def test_a_build_is_given_the_optional_arguments_it_takes() -> None:
    def both(context: Any, peers: Any) -> Any: ...
    def none(seed: int) -> Any: ...

    assert accepted_arguments(both, CONTEXT, PEERS) == {"context": CONTEXT, "peers": PEERS}
    assert accepted_arguments(none, CONTEXT, PEERS) == {}


def test_the_former_name_of_the_context_is_accepted_with_a_warning() -> None:
    def former(surroundings: Any) -> Any: ...

    with pytest.warns(DeprecationWarning, match="`surroundings`, which is `context` now"):
        assert accepted_arguments(former, CONTEXT, PEERS) == {"surroundings": CONTEXT}
