"""Tiny environments as users' files: a structured observation with several choices at once, and a cue to remember."""

from pathlib import Path

PANEL = '''
"""Set both dials as the lamp and the picture say."""

import numpy as np
from gymnasium import spaces

from loomrl.envs import BaseEnvironment


class Panel(BaseEnvironment):
    observation_space = spaces.Dict(
        picture=spaces.Box(0, 255, (6, 6, 1), np.uint8),
        panel=spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1.0, 1.0, (2,), np.float32)]),
    )
    action_space = spaces.MultiDiscrete([3, 2], start=[1, 0])

    def reset(self):
        self.steps = 0
        return self.look()

    def step(self, action):
        self.steps += 1
        reward = float(action[0] == self.lamp) + float(action[1] == self.bright)
        return self.look(), reward / 2, self.steps >= 8, {}

    def look(self):
        self.lamp, self.bright = self.np_random.integers(1, 4), self.np_random.integers(2)
        picture = np.full((6, 6, 1), 200 if self.bright else 20, np.uint8)
        return {"picture": picture, "panel": (self.lamp, self.np_random.uniform(-1, 1, 2))}
'''


CUE = '''
"""Shown once, asked for two steps later: which of two cues was it?"""

import numpy as np
from gymnasium import spaces

from loomrl.envs import BaseEnvironment


class Cue(BaseEnvironment):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        self.cue, self.steps = self.np_random.integers(2), 0
        return [2 * self.cue - 1, 0]

    def step(self, action):
        self.steps += 1
        over = self.steps > 2
        return [0, self.steps == 2], float(over and action == self.cue), over, {}
'''


def write_panel(folder: Path, module: str) -> None:
    """Write `MODULE.py` with the class `Panel`; each test needs a module name of its own."""
    (folder / f"{module}.py").write_text(PANEL)


def write_cue(folder: Path, module: str) -> None:
    """Write `MODULE.py` with the class `Cue`."""
    (folder / f"{module}.py").write_text(CUE)


INITIALS = '''"""Say a word's first letter. Of its 512 words some are held out, and they are like the others."""

from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Draft, Kind


def initial(rng, level):
    word = "".join("abcdefgh"[index] for index in rng.integers(8, size=3))
    return Draft(word, word[0], ["x", "y", "z"])


class Initials(Domain):
    name = "initials"
    weights = {"solved": 1.0}
    kinds = {"initial": Kind(first_level=0, make=initial)}
    prompt_bytes, answer_bytes, choice_bytes = 4, 3, 2

    def verify(self, task, answer):
        return {"solved": float(RULE)}


class Environment(DomainEnvironment):
    domain = Initials()
'''


def write_initials(folder: Path, module: str, rule: str = "answer == task.right") -> None:
    """Write `MODULE.py` with the class `Environment`; `rule` is what its verifier pays for."""
    (folder / f"{module}.py").write_text(INITIALS.replace("RULE", rule))
