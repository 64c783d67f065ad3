"""Versions never change, aliases move together, and what was tampered with is not handed out."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.storage import registry as tracking
from loomrl.storage.registry import CHALLENGER, CHAMPION, PREVIOUS, PolicyVersion, Registry
from loomrl.storage.registry.connection import mlflow_client
from loomrl.system.files import sha256_file, verify_sums
from tests.support.policy_versions import graph, make_artifacts, register


@pytest.fixture
def two_versions(ready_home: Path, tmp_path: Path) -> tuple[Registry, PolicyVersion, PolicyVersion]:
    registry = Registry()
    return registry, register(tmp_path, "run-1", registry), register(tmp_path, "run-2", registry, bias=1.0)


def test_an_unknown_policy_has_nothing(ready_home: Path) -> None:
    registry = Registry()
    assert registry.policies() == []
    assert registry.aliases("cartpole") == {}
    assert registry.versions("cartpole") == []
    assert registry.get("cartpole", CHAMPION) is None
    assert registry.get("cartpole", "1") is None
    with pytest.raises(ConfigError, match="versions: none; aliases: none"):
        registry.require("cartpole", CHAMPION)


def test_versions_are_found_by_number_and_alias(two_versions: tuple[Registry, PolicyVersion, PolicyVersion]) -> None:
    registry, first, second = two_versions
    assert [version.version for version in registry.versions("cartpole")] == ["1", "2"]
    assert (first.run_id, first.tags["loomrl.run_id"]) == ("run-1", "run-1")
    assert first.digest != second.digest
    registry.set_aliases("cartpole", {CHAMPION: "2"})
    assert registry.require("cartpole", CHAMPION) == registry.require("cartpole", "2")
    assert registry.policies() == ["cartpole"]


def test_the_same_policy_is_registered_once(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], tmp_path: Path
) -> None:
    registry, first, _ = two_versions
    assert register(tmp_path, "run-3", registry).version == first.version
    assert len(registry.versions("cartpole")) == 2


def test_a_download_is_what_was_registered(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], tmp_path: Path
) -> None:
    registry, first, _ = two_versions
    folder = registry.download(first, tmp_path / "download")
    assert (folder / "policy.onnx").read_bytes() == graph(0.0)
    verify_sums(folder)
    changed = (folder / "policy.onnx").stat().st_mtime_ns
    assert registry.download(first, folder) == folder
    assert (folder / "policy.onnx").stat().st_mtime_ns == changed, "a verified copy is kept"
    (folder / "policy.onnx").write_bytes(b"torn")
    registry.download(first, folder)
    assert (folder / "policy.onnx").read_bytes() == graph(0.0)


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.1:9/api/2.0/mlflow-artifacts/artifacts/x",
        "HTTP://127.0.0.1:9/x",
        "mlflow-artifacts://127.0.0.1:9/x",
        "models:/cartpole/2",
        "runs:/x/policy",
    ],
)
def test_nothing_is_fetched_from_where_a_version_says_it_lies_elsewhere(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], tmp_path: Path, place: str
) -> None:
    """MLflow's client would send its login to whatever address stands there, or find one that does under a name."""
    registry, first, _ = two_versions
    elsewhere = first.model_copy(update={"source": place})
    with pytest.raises(ArtifactError, match="no place that LoomRL registers"):
        registry.download(elsewhere, tmp_path / "download")


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/x", "mlflow-artifacts://127.0.0.1:9/x"])
def test_nothing_is_sent_to_where_an_experiment_says_its_artifacts_go(
    ready_home: Path, tmp_path: Path, place: str
) -> None:
    with mlflow_client(Registry().tracking_uri) as client:
        client.create_experiment("loomrl/cartpole", artifact_location=place)
    with pytest.raises(ArtifactError, match="no place that LoomRL registers"):
        register(tmp_path, "run-1")


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_no_folder_of_this_machine_is_copied_but_a_version_s_own(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], tmp_path: Path, form: str
) -> None:
    """Whoever writes to MLflow names any folder: what it holds does not even reach the temporary one."""
    registry, first, second = two_versions
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    os.mkfifo(secrets / "pipe")  # what is opened for reading here never returns
    (secrets / "SHA256SUMS").write_text("0  pipe\n")
    (tmp_path / "empty").mkdir()
    for folder, tags in (
        (secrets, {}),
        (secrets, {"loomrl.sums_sha256": sha256_file(secrets / "SHA256SUMS")}),
        (tmp_path / "empty", {}),
        (tmp_path / "absent", {}),
        (Path(second.source), {}),
        (Path(second.source), {"loomrl.sums_sha256": second.sums_sha256}),
    ):
        named = first.model_copy(update={"source": form.format(folder), "tags": first.tags | tags})
        with pytest.raises(ArtifactError, match="cartpole@1: .* does not hold what was registered"):
            registry.download(named, tmp_path / "download")
    whole = first.model_copy(update={"source": form.format(first.source)})
    assert (registry.download(whole, tmp_path / "download") / "policy.onnx").read_bytes() == graph(0.0)


def test_an_artifact_store_beside_the_home_is_read(ready_home: Path, tmp_path: Path) -> None:
    """Also where its path holds what a URI writes otherwise."""
    store = tmp_path / "shared store"
    registry = Registry()
    with mlflow_client(registry.tracking_uri) as client:
        client.create_experiment("loomrl/cartpole", artifact_location=store.as_uri())
    version = register(tmp_path, "run-1", registry)
    assert version.source.startswith("file://")
    assert (registry.download(version, tmp_path / "download") / "policy.onnx").read_bytes() == graph(0.0)


@pytest.mark.parametrize("attack", ["flip a bit", "add a file", "lose a file", "rewrite the sums", "swap versions"])
def test_a_tampered_store_is_noticed(
    attack: str, two_versions: tuple[Registry, PolicyVersion, PolicyVersion], tmp_path: Path
) -> None:
    registry, first, second = two_versions
    stored, other = Path(first.source), Path(second.source)
    if attack == "flip a bit":
        data = bytearray((stored / "policy.onnx").read_bytes())
        data[-1] ^= 1
        (stored / "policy.onnx").write_bytes(data)
    elif attack == "add a file":
        (stored / "policy.onnx.data").write_bytes(b"external weights")
    elif attack == "lose a file":
        (stored / "case.json").unlink()
    elif attack == "rewrite the sums":
        (stored / "policy.onnx").write_bytes(graph(9.0))
        sums = (
            (stored / "SHA256SUMS")
            .read_text()
            .replace(sha256_file(other / "policy.onnx"), sha256_file(stored / "policy.onnx"))
        )
        (stored / "SHA256SUMS").write_text(sums + "\n")
    else:
        shutil.rmtree(stored)
        shutil.copytree(other, stored)
    with pytest.raises(ArtifactError, match="cartpole@1"):
        registry.download(first, tmp_path / "download")
    assert not (tmp_path / "download").exists()


def test_a_store_that_lost_a_version_is_named(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], tmp_path: Path
) -> None:
    registry, first, _ = two_versions
    shutil.rmtree(first.source)
    with pytest.raises(ArtifactError, match="cartpole@1.*backup"):
        registry.download(first, tmp_path / "download")


def test_an_export_that_was_changed_is_not_registered(ready_home: Path, tmp_path: Path) -> None:
    artifacts = make_artifacts(tmp_path / "artifacts")
    (artifacts / "export" / "policy.onnx").write_bytes(graph(3.0))
    with pytest.raises(ArtifactError, match=r"policy\.onnx was changed"):
        Registry().register("cartpole", artifacts / "export", "run-1")
    assert Registry().versions("cartpole") == []


def test_aliases_move_together(two_versions: tuple[Registry, PolicyVersion, PolicyVersion]) -> None:
    registry, _, _ = two_versions
    registry.set_aliases("cartpole", {CHAMPION: "1", CHALLENGER: "2"})
    registry.set_aliases("cartpole", {CHAMPION: "2", PREVIOUS: "1", CHALLENGER: None})
    assert registry.aliases("cartpole") == {CHAMPION: "2", PREVIOUS: "1"}


def test_a_move_to_a_missing_version_changes_nothing(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion],
) -> None:
    registry, _, _ = two_versions
    registry.set_aliases("cartpole", {CHAMPION: "1"})
    with pytest.raises(ConfigError, match="cartpole@7 is not registered"):
        registry.set_aliases("cartpole", {CHAMPION: "2", PREVIOUS: "7"})
    assert registry.aliases("cartpole") == {CHAMPION: "1"}


def test_a_failing_move_is_undone(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], ready_home: Path
) -> None:
    """The database itself refuses the second of three moves."""
    registry, _, _ = two_versions
    registry.set_aliases("cartpole", {CHAMPION: "1"})
    with sqlite3.connect(ready_home / "mlflow.db") as database:
        database.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON registered_model_aliases WHEN NEW.alias = 'previous' "
            "BEGIN SELECT RAISE(ABORT, 'no space left'); END"
        )
    database.close()
    with pytest.raises(ServiceError, match="no space left"):
        registry.set_aliases("cartpole", {CHAMPION: "2", PREVIOUS: "1", CHALLENGER: "2"})
    assert registry.aliases("cartpole") == {CHAMPION: "1"}


@pytest.mark.long
def test_the_champion_is_never_missing_while_it_moves(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], ready_home: Path
) -> None:
    """Another process polls, as a policy server does, while the aliases swap many times."""
    registry, _, _ = two_versions
    registry.set_aliases("cartpole", {CHAMPION: "1", PREVIOUS: "2"})
    watch = (
        "import sys, time; from loomrl.storage.registry import Registry; registry = Registry(); seen = set(); "
        "registry.aliases('cartpole'); print('ready', flush=True); end = time.monotonic() + 2\n"
        "while time.monotonic() < end: seen.add(registry.aliases('cartpole').get('champion'))\n"
        "print(sorted(map(str, seen)))"
    )
    watcher = subprocess.Popen([sys.executable, "-c", watch], stdout=subprocess.PIPE, text=True)
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "ready\n"
    while watcher.poll() is None:
        registry.set_aliases("cartpole", {CHAMPION: "2", PREVIOUS: "1"})
        registry.set_aliases("cartpole", {CHAMPION: "1", PREVIOUS: "2"})
    assert watcher.stdout.read() == "['1', '2']\n"
    watcher.stdout.close()


def test_metrics_beyond_one_batch_all_arrive(ready_home: Path) -> None:
    run = tracking.start_run("cartpole", "run-1", {"a": "b"}, {"training.seed": 2})
    tracking.log_metrics_batch(run, [("loss", float(step), step, 1_700_000_000_000 + step) for step in range(2_345)])
    tracking.log_values(run, {"accuracy": 0.5})
    tracking.log_values(None, {"accuracy": 0.5})
    tracking.set_tags(run, {"loomrl.state": "promoted"})
    tracking.finish_run(run)
    with mlflow_client(Registry().tracking_uri) as client:
        history = client.get_metric_history(run, "loss")
        found = client.get_run(run)
    assert [metric.step for metric in sorted(history, key=lambda metric: metric.step)] == list(range(2_345))
    assert (found.data.params, found.data.metrics["accuracy"]) == ({"training.seed": "2"}, 0.5)
    assert (found.data.tags["loomrl.state"], found.info.status) == ("promoted", "FINISHED")
    assert found.info.artifact_uri.startswith(str(ready_home / "mlartifacts" / "cartpole"))
    assert tracking.find_run("cartpole", "run-1") == run
    assert tracking.find_run("cartpole", "run-2") is None


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_itself_loads_the_very_graph(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    import numpy as np

    registry, _, _ = two_versions
    registry.set_aliases("cartpole", {CHAMPION: "2"})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.tracking_uri)
    mlflow.set_tracking_uri(registry.tracking_uri)
    answer = mlflow.pyfunc.load_model("models:/cartpole@champion").predict(np.zeros((2, 4), np.float32))
    assert answer["action"].tolist() == [[1.0] * 4] * 2


def test_an_unreachable_server_is_named_at_once_and_its_password_is_not(loomrl_home: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ServiceError, match=r"MLflow at http://127\.0\.0\.1:9 failed.*make up") as raised:
        Registry("http://user:secret@127.0.0.1:9").aliases("cartpole")
    assert "secret" not in str(raised.value)
    assert time.monotonic() - started < 15


def test_a_file_that_is_no_database_is_named(loomrl_home: Path) -> None:
    (loomrl_home / "mlflow.db").write_bytes(b"not a database" * 500)
    with pytest.raises(ServiceError, match=r"mlflow\.db failed.*not a database.*loomrl backup"):
        Registry().aliases("cartpole")


@pytest.mark.long  # MLflow waits for 20 s, whatever the URI says
def test_a_locked_database_is_named(
    two_versions: tuple[Registry, PolicyVersion, PolicyVersion], ready_home: Path
) -> None:
    registry = two_versions[0]
    blocker = sqlite3.connect(ready_home / "mlflow.db", isolation_level=None)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(ServiceError, match="locked"):
            registry.set_aliases("cartpole", {CHAMPION: "1"})
    finally:
        blocker.close()
    registry.set_aliases("cartpole", {CHAMPION: "1"})


@pytest.mark.long
def test_the_same_registry_with_and_without_its_server(ready_home: Path, tmp_path: Path) -> None:
    """Registered through a server and read without it, and the other way round."""
    database = f"sqlite:///{ready_home / 'mlflow.db'}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", database, "--artifacts-destination", str(ready_home / "mlartifacts")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True)
    try:
        through_server, direct = Registry(f"http://127.0.0.1:{port}"), Registry(database)
        _wait_for(port, server)
        first = register(tmp_path, "run-1", through_server)
        assert first.source.startswith("mlflow-artifacts:/")
        second = register(tmp_path, "run-2", direct, bias=1.0)
        third = register(tmp_path, "run-3", through_server, bias=2.0)
        third_policy = register(tmp_path, "run-4", direct, bias=3.0, policy="hopper")
        through_server.set_aliases("cartpole", {CHAMPION: "1"})
        assert direct.aliases("cartpole") == {CHAMPION: "1"}
        for number, version in enumerate((first, second, third, third_policy)):
            for name, registry in (("server", through_server), ("direct", direct)):
                folder = registry.download(version, tmp_path / f"{name}-{number}")
                assert (folder / "policy.onnx").read_bytes() == graph(float(number))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health").raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise AssertionError("the MLflow server did not start")
