"""An environment as a user would write it: a package `rooms` with the class `rooms.thermostat:Thermostat`."""

from pathlib import Path

THERMOSTAT = '''
"""A room that drifts; the heater moves it back."""

import numpy as np
from gymnasium import spaces
from rooms import physics

from loomrl.envs import BaseEnvironment


class Thermostat(BaseEnvironment):
    observation_space = spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config):
        super().__init__(config)
        self.drift = self.config.get("drift", 0.1)

    def reset(self):
        self.temperature = self.np_random.uniform(-1.0, 1.0)
        self.steps = 0
        return [self.temperature, 0.0]

    def step(self, action):
        from .late import HEAT

        self.steps += 1
        self.temperature = physics.move(self.temperature, HEAT if action else -HEAT, self.drift)
        return [self.temperature, self.steps], -abs(self.temperature), self.steps >= 30, {}
'''

PHYSICS = """
from pathlib import Path

GAIN = float((Path(__file__).parent / "gain.txt").read_text())


def move(temperature, heat, drift):
    return temperature + GAIN * heat * drift
"""


def write_rooms(folder: Path, gain: str = "1.0") -> Path:
    """A package `rooms` with a relative, an absolute and a late import and a data file."""
    package = folder / "rooms"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "thermostat.py").write_text(THERMOSTAT)
    (package / "physics.py").write_text(PHYSICS)
    (package / "late.py").write_text("HEAT = 1.0\n")
    (package / "gain.txt").write_text(gain)
    return folder
