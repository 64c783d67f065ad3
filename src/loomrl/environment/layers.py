"""What an environment is wrapped in."""

from collections.abc import Iterator
from typing import Any

import gymnasium


def layers_of(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """The wrappers around an environment, from the outside in, then the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env
