"""Machine code on disk is taken up by the next process."""

import subprocess
import sys

SCRIPT = """
import sys
from loomrl.training.trainer import PPOTrainer
import asyncio
trainer = PPOTrainer({"num_envs": 4, "rollout_length": 32, "batch_size": 64, "n_epochs": 1})
asyncio.run(trainer.train(total_timesteps=128))
from loomrl.algorithms.compiled.ppo import gradient_steps
from loomrl.algorithms.compiled.gae import advantages
for kernel in (gradient_steps, advantages):
    assert sum(kernel.stats.cache_hits.values()) == 1, kernel
    assert not kernel.stats.cache_misses, kernel
print(*(name for name in ("torch", "matplotlib", "pandas", "prefect", "mlflow") if name in sys.modules))
"""


def test_a_second_process_compiles_nothing_and_imports_no_torch() -> None:
    warm = SCRIPT.partition("from loomrl.algorithms.compiled.ppo")[0]
    subprocess.run([sys.executable, "-c", warm], check=True)
    answer = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == ""
