"""The names of the back-ends and what a config may leave to them, apart from everything they need."""

from typing import Literal

BackendName = Literal["auto", "batched", "mujoco", "serial", "processes", "gymnasium", "envpool", "device"]
TIMEOUT_SECONDS = 60.0  # after which an environment in a process of its own counts as hung
