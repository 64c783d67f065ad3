"""The API's description: valid, of this server, and of every route there is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schemathesis

from loomrl.serving.context import ServerSettings
from loomrl.system.http.tokens import ROLES, add
from tests.support.inside import Inside
from tests.support.policies import continuous_folder, discrete_folder

DEFECT = "500"


@pytest.fixture
def folder(loomrl_home: Path, tmp_path: Path) -> Path:
    return discrete_folder(tmp_path / "policy")


def described(server: Inside) -> Any:
    answer = server.ask("GET", "/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    return answer.json()


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    """Method, path and operation; what stands in a path is the only value there is, or else `none`."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            filled = path
            for place in (parameter for parameter in operation["parameters"] if parameter["in"] == "path"):
                filled = filled.replace(f"{{{place['name']}}}", place["schema"].get("enum", ["none"])[0])
            yield method.upper(), filled, operation


def test_it_is_a_valid_description(folder: Path) -> None:
    with Inside(ServerSettings("cartpole", folders={"champion": folder})) as server:
        document = described(server)
    schemathesis.openapi.from_dict(document).validate()
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids) > 30
    links = [link for _, _, operation in operations(document) for link in _links(operation)]
    assert {link["operationId"] for link in links} <= set(ids)


def _links(operation: Any) -> Iterator[Any]:
    for response in operation["responses"].values():
        yield from response.get("links", {}).values()


def test_there_is_one_without_a_champion_too(loomrl_home: Path, tmp_path: Path) -> None:
    with Inside(ServerSettings("cartpole", folders={"champion": tmp_path / "none"})) as server:
        schemathesis.openapi.from_dict(described(server)).validate()


def test_every_operation_is_there_and_says_what_it_does(folder: Path) -> None:
    with Inside(ServerSettings("cartpole", folders={"champion": folder})) as server:
        for method, path, operation in operations(described(server)):
            answer = server.ask(method, path)
            assert str(answer.status_code) in operation["responses"].keys() - {DEFECT}, (method, path, answer.text)
            assert "no route" not in answer.text
            assert operation["summary"].endswith(".")


def test_its_examples_are_right(loomrl_home: Path, tmp_path: Path) -> None:
    folder = continuous_folder(tmp_path / "policy")
    with Inside(ServerSettings("hopper", folders={"champion": folder})) as server:
        schemas = described(server)["components"]["schemas"]
        ask, tensor, order = (schemas[name]["properties"] for name in ("OneAsk", "Tensor", "OverrideOrder"))
        observation = ask["observation"]["examples"][0]
        assert np.shape(observation) == (4,)
        assert (ask["observation"]["minItems"], ask["observation"]["maxItems"]) == (4, 4)
        assert order["action"]["anyOf"][0]["maxItems"] == 2
        assert server.decide(ask["agent_id"]["examples"][0], observation).status_code == 200
        sent = {name: tensor[name]["enum"][0] for name in ("name", "datatype")}
        sent |= {name: tensor[name]["examples"][0] for name in ("shape", "data")}
        assert server.ask("POST", "/v2/models/hopper/infer", {"inputs": [sent]}).status_code == 200


def test_it_names_the_tokens_that_are_needed_now(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it names a role nobody else is let in, and where it names none everybody is."""
    monkeypatch.delenv("LOOMRL_OPERATOR_TOKEN", raising=False)
    settings = ServerSettings("cartpole", folders={"champion": folder})
    with Inside(settings) as server:
        assert not any("security" in operation for _, _, operation in operations(described(server)))
    for roles in (["operate"], ROLES):
        path = tmp_path / f"{len(roles)}-tokens"
        monkeypatch.setenv("LOOMRL_TOKENS_FILE", str(path))
        for role in roles:
            add(path, role, [role])
        with Inside(settings) as server:
            for method, place, operation in operations(described(server)):
                status = server.ask(method, place).status_code
                assert (status == 401) is ("security" in operation), (method, place, status)
