"""The names of the back-ends, apart from everything they need."""

from typing import Literal

BackendName = Literal["auto", "batched", "mujoco", "serial", "processes", "gymnasium", "envpool", "device"]
