"""The hub's description: valid, of every route, and what a sample of fuzzed requests is answered."""

from pathlib import Path

import httpx
import pytest
import schemathesis

from loomrl.language.trajectory.process import HubProcess
from loomrl.system.http.tokens import ROLES, TOKENS_FILE, add
from tests.support.fuzzing import fuzz, num_accepted, roles_that_are_let_in


def test_it_is_a_valid_description(hub: httpx.Client) -> None:
    answer = hub.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    schemathesis.openapi.from_dict(answer.json()).validate()
    for path, operations in answer.json()["paths"].items():
        assert all(operation["summary"].endswith(".") for operation in operations.values()), path
    assert "security" not in answer.json()["paths"]["/batch"]["get"]


@pytest.mark.parametrize("num_examples", [3, 10])
@pytest.mark.long_cases("10")
def test_every_answer_is_one_that_is_described(
    hub_process: HubProcess, hub: httpx.Client, tmp_path: Path, num_examples: int
) -> None:
    report = fuzz(hub_process.url, tmp_path, num_examples, reads_strictly=False, is_sample=True)
    accepted = num_accepted(report)
    assert report["operations"]["tested"] == report["operations"]["total"] > 20
    assert all(accepted[f"POST {path}"] for path in ("/register", "/scored_data", "/scored_data_list"))
    assert hub.get("/reset_data").status_code == 200
    assert "Traceback" not in hub_process.log()


def test_each_route_wants_the_right_that_its_description_names(tmp_path: Path) -> None:
    tokens = {role: add(tmp_path / "tokens", role, [role]) for role in ROLES}
    with HubProcess(environment={TOKENS_FILE: str(tmp_path / "tokens")}) as hub:
        for operation, (named, let_in) in roles_that_are_let_in(hub.url, tokens).items():
            expected = {"operate", *(set(tokens) if named == "any" else [named])}
            assert let_in == ({"nobody", *tokens} if named == "open" else expected), operation


@pytest.mark.parametrize("number", ["9" * 5_000, "-1", "x", "\u0663".encode().hex(), "1" * 19])
def test_a_batch_of_no_number_is_not_found(hub: httpx.Client, number: str) -> None:
    assert hub.post(f"/batch/{number}/ack").status_code == 404
