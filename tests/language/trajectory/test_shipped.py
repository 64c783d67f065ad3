"""The API tests that the reference ships, unmodified, against a hub.

They start a server of their own at localhost:8000 and talk to it. Here the hub has that address already, in a network
of its own, so the reference's server cannot bind and ends.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.atropos import PYTHON, need_reference

FILES = ("test_api_compression", "test_api_legacy", "test_api_messages_handling")
NUM_TESTS = 36
_SCRIPT = """
set -e
ip link set lo up
"$1" -m loomrl.language.trajectory serve --port 8000 --database-url "sqlite:///$2/hub.db" --port-file "$2/port.json" &
hub=$!
trap 'kill $hub; wait $hub || true' EXIT
for try in $(seq 600); do [ -s "$2/port.json" ] && break; sleep 0.1; done
cd "$2"
"$3" -m pytest -q -p no:cacheprovider -c /dev/null --rootdir "$2" --pyargs "${@:4}"
"$1" -c "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/metrics').read().decode())"
"""


def test_the_tests_that_the_reference_ships_pass(tmp_path: Path) -> None:
    need_reference()
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no network of its own (unshare --net), which keeps port 8000 free for the hub")
    modules = [f"atroposlib.tests.{name}" for name in FILES]
    command = ["unshare", "--net", "bash", "-c", _SCRIPT, "bash", sys.executable, tmp_path, PYTHON, *modules]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    source = Path(__file__).parents[3] / "src"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": str(source)},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"\b{NUM_TESTS} passed", done.stdout), done.stdout
    taken = re.search(r"^loomrl_hub_groups_total ([0-9.]+)", done.stdout, re.MULTILINE)
    assert taken is not None
    assert float(taken[1]) > NUM_TESTS  # by the hub, not by a server of the reference's own
