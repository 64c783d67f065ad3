"""What ends the process of a hub that is started again is told to who started it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("raise RuntimeError('no such hub')", 1, "RuntimeError: no such hub"),
        ("raise ConfigError('no such key')", 2, "hub: no such key"),
        ("sys.exit(3)", 3, ""),
        ("pass", 0, ""),
    ],
)
def test_how_a_hub_ended_is_told(body: str, code: int, told: str) -> None:
    program = (
        "import sys\n"
        "from loomrl.errors import ConfigError\n"
        "from loomrl.language.trajectory.storage.keeping import run_supervised\n"
        f"def run():\n    {body}\n"
        "sys.exit(run_supervised(run))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert told in ended.stderr
