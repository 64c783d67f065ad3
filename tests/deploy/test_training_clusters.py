"""Ray accepts the cluster files, the manifests of a training fit each other, and commands in them are LoomRL's."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from loomrl.runs.config import load_config, parse_overrides

ROOT = Path(__file__).resolve().parents[2]
RAY = ROOT / "deploy" / "ray"
KUBERNETES = ROOT / "deploy" / "kubernetes"
CLUSTER_FILES = sorted(RAY.glob("*.yaml"))


@pytest.fixture(params=CLUSTER_FILES, ids=lambda path: path.stem)
def cluster_file(request: pytest.FixtureRequest) -> Path:
    """Each of them."""
    path: Path = request.param
    return path


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def kustomized(folder: str) -> dict[str, dict[str, Any]]:
    """What kubectl would apply, by kind."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    built = subprocess.run([kubectl, "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(built.stdout)}


def checked_command(text: str) -> None:
    """`loomrl run CONFIG --set KEY=VALUE ...`: the config is there and takes the settings."""
    words = shlex.split(text.replace("\\\n#", " "))
    config, *options = words[words.index("run") + 1 :]
    settings = options[1::2]
    assert set(options[::2]) == {"--set"}
    distributed = load_config(ROOT / config, parse_overrides(settings)).training.distributed
    assert distributed is not None
    assert (distributed.num_learners, distributed.address) == (2, "auto")


def test_ray_accepts_the_cluster_file(cluster_file: Path) -> None:
    prepared = prepare_config(read(cluster_file))
    validate_config(prepared)
    assert sum(one["min_workers"] for one in prepared["available_node_types"].values()) >= 2


def test_every_machine_has_the_token_and_asks_for_it(cluster_file: Path) -> None:
    cluster = read(cluster_file)
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    for role in ("head", "worker"):
        (start,) = (one for one in cluster[f"{role}_start_ray_commands"] if "ray start" in one)
        assert "RAY_AUTH_MODE=token" in start


def test_the_extras_that_images_and_machines_install_exist() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for path in (*CLUSTER_FILES, RAY / "Dockerfile"):
        (named,) = re.findall(r"'\.\[(.*?)\]'", path.read_text())
        assert "distributed" in named.split(",")
        assert set(named.split(",")) <= extras, path


def test_the_command_in_the_cluster_file_runs_a_life_cycle() -> None:
    (command,) = re.findall(r"ray exec \S+ '(.*?)'", (RAY / "on-premise.yaml").read_text(), re.DOTALL)
    checked_command(command)


@pytest.mark.parametrize("folder", ["training", "training-gpu"])
def test_the_manifests_fit_each_other(folder: str) -> None:
    found = kustomized(folder)
    assert {one["metadata"]["namespace"] for one in found.values()} == {"loomrl"}
    job, cluster = found["RayJob"]["spec"], found["RayCluster"]
    assert job["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    checked_command(job["entrypoint"])
    head, learners = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"][0]
    volume = head["template"]["spec"]["volumes"][0]
    assert volume["persistentVolumeClaim"]["claimName"] == found["PersistentVolumeClaim"]["metadata"]["name"]
    images = {one["template"]["spec"]["containers"][0]["image"].split(":")[0] for one in (head, learners)}
    assert images == {"loomrl-training"}
    environment = head["template"]["spec"]["containers"][0]["envFrom"][0]
    assert environment["configMapRef"]["name"] == found["ConfigMap"]["metadata"]["name"]


def test_the_cluster_has_the_version_that_is_pinned_a_token_and_room_to_grow() -> None:
    cluster = kustomized("training")["RayCluster"]["spec"]
    assert f"ray=={cluster['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    assert cluster["authOptions"] == {"mode": "token"}
    (learners,) = cluster["workerGroupSpecs"]
    assert 2 <= learners["minReplicas"] <= learners["replicas"] <= learners["maxReplicas"]


def test_with_gpus_every_learner_has_one() -> None:
    (learners,) = kustomized("training-gpu")["RayCluster"]["spec"]["workerGroupSpecs"]
    (container,) = learners["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
