"""The example trainer that the reference ships: its client registers at a hub and makes tensors of the batches it gets.

Its files are used as they are. Only the package's `__init__` is left out: it imports transformers and vLLM.
"""

import json
import subprocess
import sys

import httpx

from loomrl.language.trajectory.process import HubProcess
from tests.support.atropos import PYTHON, group, need_reference

_SCRIPT = """
import json, sys, types
from pathlib import Path

url, folder = sys.argv[1:]
sys.path.append(folder)
package = types.ModuleType("example_trainer")
package.__path__ = [f"{folder}/example_trainer"]
sys.modules["example_trainer"] = package

from example_trainer.api import check_atropos_api, register_trainer
from example_trainer.config import TrainingConfig
from example_trainer.data import get_data

config = TrainingConfig(
    model_name="none", atropos_url=url, batch_size=4, gradient_accumulation_steps=1, seq_len=64, training_steps=7)
assert check_atropos_api(url)
register_trainer(config)
(made,), _ = get_data(4, 64, url)
names = ("tokens", "labels", "advantages", "temperatures", "logprobs")
print(json.dumps({name: batches[0].flatten(1)[:, 0].tolist() for name, batches in zip(names, made)}))
"""


def test_the_example_trainer_gets_its_batches() -> None:
    need_reference()
    (site,) = PYTHON.parents[1].glob("lib/python*/site-packages")
    with HubProcess() as hub, httpx.Client(base_url=hub.url, trust_env=False) as environment:
        for mark in (1, 2):
            posted = group(
                2, mark, inference_logprobs=[[1.0, -0.5], [1.0, -0.25]], generation_params={"temperature": 0.5}
            )
            environment.post("/scored_data", json=posted).raise_for_status()
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, hub.url, str(site)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert environment.get("/info").json() == {"batch_size": 4, "max_token_len": 64}
        assert environment.get("/status").json() == {"current_step": 1, "queue_size": 0}
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tokens"] == [1, 1, 2, 2]
    assert found["labels"] == [0, 1, 0, 1]  # shifted by one: what follows the prompt
    assert found["logprobs"] == [-0.5, -0.25, -0.5, -0.25]
    assert found["temperatures"] == [0.5] * 4
    assert [value < 0 for value in found["advantages"]] == [True, False, True, False]
