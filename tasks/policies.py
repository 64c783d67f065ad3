"""The policies of this project, as a type: Prefect offers them as a choice and refuses any other."""

from enum import StrEnum

import yaml

from loomrl.system.home import project_root


def policy_names() -> list[str]:
    """The names in `params.yaml`."""
    names: list[str] = yaml.safe_load((project_root() / "params.yaml").read_text())["policies"]
    return names


PolicyName = StrEnum("PolicyName", {name: name for name in policy_names()})  # type: ignore[misc]
