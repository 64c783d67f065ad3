"""Of LoomRL's files a stage in `dvc.yaml` depends on those that `loomrl.environment.sources.stage_code` lists."""

from pathlib import Path

import pytest
import yaml

from loomrl.environment.sources.stage_code import STAGES
from loomrl.runs.stages import CODE, ORDER

IN_DVC = yaml.safe_load((Path(__file__).resolve().parents[3] / "dvc.yaml").read_text())["stages"]


def test_the_stages_are_the_same_everywhere() -> None:
    assert (CODE, *ORDER) == tuple(IN_DVC)
    assert ORDER == STAGES


@pytest.mark.parametrize("stage", ORDER)
def test_a_stage_depends_on_the_list_of_its_code(stage: str) -> None:
    artifacts = "artifacts/${item.policy}"
    before = [f"{artifacts}/{other}" for other in ORDER[: ORDER.index(stage)]]
    assert IN_DVC[stage]["deps"] == [*before, f"{artifacts}/{CODE}/{stage}.json", "constraints.txt"]
