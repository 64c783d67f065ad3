"""The settings that docs/comparing.md shows are read as they stand there."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from loomrl.runs.config import PolicyConfig
from tests.support.policy_versions import config

PAGE = Path(__file__).resolve().parents[3] / "docs" / "comparing.md"


def test_the_settings_in_the_docs_are_read() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    read = PolicyConfig.model_validate(config().model_dump(mode="json") | yaml.safe_load(block)).promotion
    assert read.comparison is not None
    assert read.off_policy is not None
    assert (read.comparison.return_range, read.off_policy.reward_range) == ((0.0, 500.0), (0.0, 1.0))
    assert read.off_policy.min_propensity == 0.05


def test_a_range_goes_up() -> None:
    for section, wrong in (("comparison", {"cost_range": [2, 1]}), ("off_policy", {"reward_range": [1, 1]})):
        with pytest.raises(ValidationError, match="must go from the least"):
            config(**{section: wrong})
