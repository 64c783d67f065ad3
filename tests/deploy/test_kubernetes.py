"""The manifests fit each other and the server: what they ask is answered, and time is given for what it needs."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.testing
import yaml

from loomrl.cli.main import app
from loomrl.serving.process import ServerProcess
from loomrl.serving.uvicorn_server import GRACE_SECONDS
from tests.support.policies import discrete_folder

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
Manifests = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    """Every manifest by kind and name."""
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
    found = [document for name in listed for document in yaml.safe_load_all((FOLDER / name).read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.fixture(scope="module")
def container(manifests: Manifests) -> dict[str, Any]:
    """The server's."""
    (found,) = manifests["StatefulSet", "policy-server"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_services_budget_and_autoscaler_mean_the_servers(manifests: Manifests, container: dict[str, Any]) -> None:
    servers = manifests["StatefulSet", "policy-server"]["spec"]
    labels = servers["template"]["metadata"]["labels"]
    assert servers["selector"]["matchLabels"] == labels
    assert ("Service", servers["serviceName"]) in manifests
    for (kind, _), manifest in manifests.items():
        if kind == "Service":
            assert manifest["spec"]["selector"] == labels
            assert {port["targetPort"] for port in manifest["spec"]["ports"]} == {"http"}
    assert manifests["PodDisruptionBudget", "policy-server"]["spec"]["selector"]["matchLabels"] == labels
    target = manifests["HorizontalPodAutoscaler", "policy-server"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", "policy-server")
    claimed = {claim["metadata"]["name"] for claim in servers["volumeClaimTemplates"]}
    assert claimed <= {mount["name"] for mount in container["volumeMounts"]}


def test_the_grace_is_longer_than_what_ending_takes(manifests: Manifests, container: dict[str, Any]) -> None:
    grace = manifests["StatefulSet", "policy-server"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= container["lifecycle"]["preStop"]["sleep"]["seconds"] + GRACE_SECONDS + 5


def test_probes_are_answered(container: dict[str, Any], tmp_path: Path) -> None:
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    options: dict[str, Any] = {"environment": {"LOOMRL_HOME": str(tmp_path / "home")}}
    with ServerProcess("cartpole", champion_folder=discrete_folder(tmp_path / "policy"), **options) as server:
        assert {path: httpx.get(server.url + path).status_code for path in paths} == dict.fromkeys(paths, 200)


def test_the_arguments_are_those_of_the_command(container: dict[str, Any]) -> None:
    assert 'ENTRYPOINT ["loomrl", "serve"' in (FOLDER.parent / "Dockerfile").read_text()
    options = [part for part in container["args"] if part.startswith("--")] + ["--host", "--port"]
    told = typer.testing.CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert [option for option in options if option not in told] == []


def test_kubectl_builds_them() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    built = subprocess.run([kubectl, "kustomize", str(FOLDER)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    documents = list(yaml.safe_load_all(built.stdout))
    assert {one["metadata"].get("namespace", "loomrl") for one in documents} == {"loomrl"}
