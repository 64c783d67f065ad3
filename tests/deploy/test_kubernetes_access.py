"""What pods of the manifests reach, and who reaches them: networks, tokens of the Kubernetes API, images, logins."""

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import httpx
import pytest
import yaml

from loomrl.system.security.credentials import generate
from tests.support.projects import ROOT, answers, environment, free_ports, until

KUBERNETES = ROOT / "deploy" / "kubernetes"
FOLDERS = (".", "servers", "training", "training-gpu")
SERVERS = {"prefect": 4200, "mlflow": 5000}
DNS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
Manifest = dict[str, Any]
Pod = tuple[dict[str, str], Manifest]  # labels, spec


@cache
def manifests(folder: str) -> list[Manifest]:
    """What kubectl would apply."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    built = subprocess.run([kubectl, "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return list(yaml.safe_load_all(built.stdout))


def pods(folder: str) -> dict[str, Pod]:
    """The pods of a folder by a name; those of a RayCluster have the labels that the KubeRay operator gives them."""
    found: dict[str, Pod] = {}
    for one in manifests(folder):
        name = one["metadata"]["name"]
        if one["kind"] in ("Deployment", "StatefulSet"):
            template = one["spec"]["template"]
            found[name] = (template["metadata"]["labels"], template["spec"])
        elif one["kind"] == "RayCluster":
            groups = {"head": one["spec"]["headGroupSpec"], "worker": one["spec"]["workerGroupSpecs"][0]}
            for kind, group in groups.items():
                labels = {"ray.io/cluster": name, "ray.io/node-type": kind}
                found[f"{name}-{kind}"] = (labels, group["template"]["spec"])
    assert found
    return found


def policies(folder: str, labels: Mapping[str, str]) -> list[Manifest]:
    """The network policies of a folder that hold for a pod."""
    listed = [one["spec"] for one in manifests(folder) if one["kind"] == "NetworkPolicy"]
    return [one for one in listed if selects(one["podSelector"], labels)]


def selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, "these manifests select by equal labels alone"
    return selector.get("matchLabels", {}).items() <= labels.items()


def allows(rules: list[Manifest], peer: str, labels: Mapping[str, str], *ports: object) -> bool:
    """Whether rules allow traffic with a pod of the same namespace; `peer` is `from` or `to`."""
    return any(
        any(one.keys() == {"podSelector"} and selects(one["podSelector"], labels) for one in rule.get(peer, ()))
        and ("ports" not in rule or any(one["port"] in ports for one in rule["ports"]))
        for rule in rules
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_pod_has_policies_in_both_directions(folder: str) -> None:
    for name, (labels, _) in pods(folder).items():
        found = policies(folder, labels)
        assert found, f"{name}: whoever gets into the cluster reaches it"
        for one in found:
            assert one["policyTypes"] == ["Ingress", "Egress"], name
            assert all(rule.get("from") for rule in one.get("ingress", ())), f"{name} is open to every address"


@pytest.mark.parametrize("folder", FOLDERS)
def test_code_in_pods_has_no_token_of_the_kubernetes_api(folder: str) -> None:
    for name, (_, spec) in pods(folder).items():
        assert spec["automountServiceAccountToken"] is False, name
        token = {volume["name"] for volume in spec.get("volumes", ()) if "projected" in volume}
        mounted = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts", ())}
        assert not token & mounted, name


def test_the_autoscaler_alone_has_a_token() -> None:
    (cluster,) = (one["spec"] for one in manifests("training") if one["kind"] == "RayCluster")
    (mount,) = cluster["autoscalerOptions"]["volumeMounts"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    volumes = {volume["name"]: volume for volume in cluster["headGroupSpec"]["template"]["spec"]["volumes"]}
    files = {
        path
        for source in volumes[mount["name"]]["projected"]["sources"]
        for kind in source.values()
        for path in ([kind["path"]] if "path" in kind else [item["path"] for item in kind["items"]])
    }
    assert files == {"token", "ca.crt", "namespace"}  # what Ray's autoscaler reads there


@pytest.mark.parametrize("folder", FOLDERS)
def test_images_are_of_this_version(folder: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, (_, spec) in pods(folder).items():
        for container in spec["containers"]:
            assert container["image"].split(":")[1:] == [version], name


def clients(server: str) -> dict[str, tuple[str, Pod]]:
    """Pods that are given the address of a server: folder, labels and spec by name."""
    found = {}
    for folder in FOLDERS:
        maps = {one["metadata"]["name"]: one["data"] for one in manifests(folder) if one["kind"] == "ConfigMap"}
        for name, pod in pods(folder).items():
            sources = [source for one in pod[1]["containers"] for source in one.get("envFrom", ())]
            given = [maps[one["configMapRef"]["name"]] for one in sources if "configMapRef" in one]
            if any(f"//{server}:" in value for values in given for value in values.values()):
                found[f"{folder}/{name}"] = (folder, pod)
    return found


def secret_keys(spec: Manifest) -> set[str]:
    """The variables that a pod's one container takes from the secret of the logins."""
    (container,) = spec["containers"]
    taken = [
        one["valueFrom"]["secretKeyRef"]
        for one in container.get("env", ())
        if "valueFrom" in one
        if "secretKeyRef" in one["valueFrom"]
    ]
    keys = {one["key"] for one in taken if one["name"] == "server-credentials"}
    whole = {"secretRef": {"name": "server-credentials"}} in container.get("envFrom", ())
    return keys | (generate().keys() if whole else set())


def test_servers_and_their_clients_have_the_same_logins() -> None:
    heads = {"training/training-head", "training-gpu/training-head"}
    assert clients("mlflow").keys() == {"./policy-server"} | heads
    assert clients("prefect").keys() == heads
    for server in SERVERS:
        wanted = secret_keys(pods("servers")[server][1])
        assert wanted == {key for key in generate() if key.startswith(server.upper())}
        for name, (_, (_, spec)) in clients(server).items():
            assert wanted <= secret_keys(spec), name
    assert secret_keys(pods(".")["policy-server"][1]) == secret_keys(pods("servers")["mlflow"][1]), "more than it needs"


@pytest.mark.parametrize("server", SERVERS)
def test_the_policies_let_clients_reach_the_servers_and_nobody_else(server: str) -> None:
    server_labels, spec = pods("servers")[server]
    (port,) = spec["containers"][0]["ports"]
    assert port["containerPort"] == SERVERS[server]
    ingress = [rule for one in policies("servers", server_labels) for rule in one["ingress"]]
    for name, (folder, (labels, _)) in clients(server).items():
        egress = [rule for one in policies(folder, labels) for rule in one["egress"]]
        assert allows(egress, "to", server_labels, SERVERS[server]), name
        assert any(rule.get("to") == [DNS] for rule in egress), f"{name} cannot look up names"
        assert allows(ingress, "from", labels, port["name"]), name
    for stranger in ({}, {"app": "else"}, pods("training")["training-worker"][0]):
        assert not allows(ingress, "from", stranger, port["name"]), stranger


@pytest.fixture(scope="module", params=SERVERS)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, int]]:
    """A server with the manifest's command and variables, in an empty home; its name, its login and the port."""
    name, secret = request.param, generate()
    home, (port,) = tmp_path_factory.mktemp(name), free_ports(1)
    (container,) = pods("servers")[name][1]["containers"]

    def local(text: str) -> str:
        moved = text.replace(str(SERVERS[name]), str(port)).replace("0.0.0.0", "127.0.0.1")
        return moved.replace("/var/lib/loomrl", str(home)).replace("/tmp/pages", str(home / "pages"))

    given = {one["name"]: local(one["value"]) for one in container["env"] if "value" in one}
    taken = {
        one["name"]: secret[one["valueFrom"]["secretKeyRef"]["key"]] for one in container["env"] if "valueFrom" in one
    }
    variables = environment(ROOT, LOOMRL_HOME=str(home), **given, **taken)
    command = [sys.executable, *container["command"][1:], *map(local, container["args"])]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        health = container["startupProbe"]["httpGet"]["path"]
        until(lambda: answers(f"http://127.0.0.1:{port}{health}"), name, (home / "log").read_text, seconds=600)
        login = (
            secret["PREFECT_API_AUTH_STRING"] if name == "prefect" else f"loomrl:{secret['MLFLOW_TRACKING_PASSWORD']}"
        )
        yield name, login, port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.long
def test_servers_answer_by_their_names_in_the_cluster_with_the_login_alone(started: tuple[str, str, int]) -> None:
    name, login, port = started
    path = {"prefect": "/api/admin/version", "mlflow": "/api/2.0/mlflow/experiments/get?experiment_id=0"}[name]

    def status(host: str, auth: Any = None) -> int:
        url = f"http://127.0.0.1:{port}{path}"
        return httpx.get(url, headers={"Host": host}, auth=auth, timeout=30).status_code

    known = httpx.BasicAuth(*login.split(":", 1))
    for host in (name, f"{name}.loomrl", f"{name}.loomrl.svc", "127.0.0.1"):
        assert (status(f"{host}:{port}", known), status(f"{host}:{port}")) == (200, 401)
    assert status("10.0.0.7", known) == 403
