"""Learners on hosts that share nothing but a network, a real Ray cluster across them."""

from pathlib import Path

import pytest
from namespaces import unavailable

from tests.soak import lost_hosts

WHY_NOT = unavailable()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def test_a_host_killed_while_it_learns_costs_nothing_of_what_is_learnt(tmp_path: Path) -> None:
    found = lost_hosts.run(tmp_path, {2: range(1)})
    (run,) = found["runs"]
    assert (run["strike"], run["num_commands"]) == ("host", 1)
