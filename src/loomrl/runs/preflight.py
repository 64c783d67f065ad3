"""What can be found wrong with a config before anything runs."""

from pathlib import Path

from loomrl.runs.config import PolicyConfig


def check(config: PolicyConfig, project: Path) -> None:
    """Look up environment, algorithm and safety checks, and validate the parameters of the latter two.

    Raises:
        ConfigError: naming the key, what was found and what is allowed.
    """
    from loomrl.algorithms.registry import parameters_for
    from loomrl.environment.resolve import resolve
    from loomrl.environment.vector.choose import constructed_like
    from loomrl.safety.registry import configured_checks

    parameters_for(config.training, config.environment.backend)
    if config.training.bounds is not None:
        constructed_like(config.environment.backend)
    configured_checks(config.safety)
    resolve(config.environment, project)


def settle(config: PolicyConfig, project: Path) -> dict[str, str]:
    """What a config leaves to LoomRL, as overrides to write into it: chosen once, obeyed by every later run.

    Empty where it leaves nothing open; else the key `environment.backend` and the backend that was chosen.

    Raises:
        ConfigError: when the environment cannot be found.
    """
    if config.environment.backend != "auto":
        return {}
    from loomrl.environment.resolve import resolve
    from loomrl.environment.vector.choose import choose

    return {"environment.backend": choose(resolve(config.environment, project))}
