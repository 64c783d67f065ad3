"""A learner whose answers are right less often the harder a task is: the curriculum finds the level it can just do."""

import numpy as np

from loomrl.gym.curriculum import Curriculum, CurriculumConfig
from loomrl.gym.stream import TaskStream

DOMAINS = ("math", "language", "multimodal")
SKILL = {"math": 2.0, "language": 4.0, "multimodal": 6.0}

config = CurriculumConfig(target_success_rate=0.8, window=20, step=0.5)
tasks = TaskStream(Curriculum(config, DOMAINS), seed=0, kinds={"math": ["addition", "linear"]})
rng = np.random.default_rng(0)
for number, (domain, task) in enumerate(tasks, start=1):
    knows = rng.random() < 1.0 / (1.0 + np.exp(1.5 * (task.difficulty - SKILL[domain])))
    score = tasks.score(task, task.right if knows else "?")
    if number % 500 == 0:
        print(number, {domain: tasks.curriculum.difficulty(domain) for domain in DOMAINS}, f"last score {score.total}")
    if number == 3_000:
        break
