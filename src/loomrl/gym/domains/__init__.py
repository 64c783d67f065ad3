"""The domains of LoomRL Gym: every module in this folder, and the entry points of others.

A module offers `DOMAIN`, and `Environment`, the Gymnasium environment over it. A third party adds one with, in its
`pyproject.toml`:

    [project.entry-points."loomrl.domains"]
    riddles = "my_package.riddles"
"""

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from types import ModuleType

from loomrl.errors import ConfigError
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain
from loomrl.system.plugins import DOMAINS, place_of, plugin_points


def own_names() -> list[str]:
    """The domains that come with LoomRL: the modules and packages in this folder."""
    return sorted(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]))


def names() -> list[str]:
    """The names of all domains, those of plug-ins included."""
    return [*own_names(), *(point.name for point in plugin_points(DOMAINS))]


def get_domain(name: str) -> Domain:
    """The domain of a name; raises `ConfigError` where there is none, or a plug-in's does not offer what it must."""
    domain: Domain = _module(name).DOMAIN
    return domain


def get_environment(name: str) -> type[DomainEnvironment]:
    """The class of the environment over a domain; raises `ConfigError` as `get_domain` does."""
    environment: type[DomainEnvironment] = _module(name).Environment
    return environment


@cache
def _module(name: str) -> ModuleType:
    if name in own_names():
        return importlib.import_module(f"{__package__}.{name}")
    for point in (one for one in plugin_points(DOMAINS) if one.name == name):
        try:
            module: ModuleType = point.load()
            if isinstance(module.DOMAIN, Domain) and issubclass(module.Environment, DomainEnvironment):
                return module
        except (ImportError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{place_of(point)} must offer DOMAIN and Environment: {error}; repair that package"
            ) from error
    raise ConfigError(f"there is no domain {name!r}; there are: {', '.join(names())}")
