"""Controls of standards: what a case shows of them, and that every name in the list means something."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from loomrl.cli.main import app
from loomrl.safety.controls import known_controls, map_controls
from loomrl.safety.registry import find_checks
from loomrl.types import Claim, Verdict
from tests.support.trained import Policy


def claim(name: str, verdict: Verdict) -> Claim:
    return Claim(id=name, stage="limits", statement="", mandatory=True, method="", verdict=verdict)


def test_only_met_claims_are_evidence() -> None:
    met = [claim("reward_bias.group", Verdict.SUPPORTED), claim("certified.brake", Verdict.PROVED)]
    unmet = [claim("reward_bias.age", Verdict.UNDECIDED), claim("reward_hacking", Verdict.WAIVED)]
    alike = [claim("certified_elsewhere", Verdict.PROVED)]
    mapped = map_controls([*met, *unmet, *alike])
    assert mapped["IEEE 7000-2021 ethical requirements definition process: fairness"] == ["reward_bias.group"]
    assert mapped["ISO/IEC 27001:2022 A.8.29 security testing in development and acceptance"] == ["certified.brake"]
    assert not any("reward is what is wanted" in name for name in mapped)


@pytest.mark.parametrize("control", known_controls(), ids=lambda control: control.name)
def test_each_control_is_shown_by_something_that_exists(control) -> None:  # type: ignore[no-untyped-def]
    assert bool(control.claims) != bool(control.operation)
    assert {name.partition(".")[0] for name in control.claims} <= set(find_checks())
    if control.operation:
        program, group, command, *rest = shlex.split(control.operation)
        usage = CliRunner().invoke(app, [group, command, "--help"]).stdout
        assert program == "loomrl"
        assert all(option in usage for option in rest if option.startswith("--"))
        assert f"{group} {command}" in usage


def test_the_command_lists_all_with_the_digests_of_their_evidence(barely_trained: Policy) -> None:
    case = str(barely_trained.root / "safety")
    listed = json.loads(CliRunner().invoke(app, ["safety", "controls", case, "--json"]).stdout)
    assert [one["control"] for one in listed] == [one.name for one in known_controls()]
    security = next(one for one in listed if "A.8.26" in one["control"])
    assert set(security["evidence"]) >= {"finiteness"}
    assert all(len(file["sha256"]) == 64 for files in security["evidence"].values() for file in files)
    shown = CliRunner().invoke(app, ["safety", "controls", case], env={"COLUMNS": "200"}).stdout
    assert "loomrl override list" in shown
    assert "nothing" in shown
