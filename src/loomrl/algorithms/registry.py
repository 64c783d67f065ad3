"""Algorithms: every file of two folders, this one and `loomrl/language/algorithms`, that offers `NAME`, `Config` and
`build`, and the entry points of others.

A third party adds one with, in its `pyproject.toml`:

    [project.entry-points."loomrl.algorithms"]
    my_algorithm = "my_package.my_algorithm"
"""

import importlib
import pkgutil
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from loomrl.algorithms.base import AlgorithmPlugin
from loomrl.algorithms.plugin import LoadedPlugin
from loomrl.errors import ConfigError
from loomrl.system.plugins import ALGORITHMS, load_plugin, place_of, plugin_points
from loomrl.system.schema import Section, read_section

if TYPE_CHECKING:
    # Algorithms know nothing of training, but for the config that names them.
    from loomrl.training.config import TrainingConfig

_PACKAGES = ("loomrl.algorithms", "loomrl.language.algorithms")  # each module of them may be an algorithm


def find_algorithms() -> dict[str, LoadedPlugin]:
    """All algorithms by name.

    Raises:
        ConfigError: when an entry point cannot be loaded, offers too little or a misspelt member, or two have one name.
    """
    found: dict[str, LoadedPlugin] = {}
    third_party = [(place_of(point), plugin) for point, plugin in _third_party()]
    own = [(name, plugin) for name in _own_names() if (plugin := _own(name)) is not None]
    for place, plugin in [*own, *third_party]:
        if plugin.NAME in found:
            raise ConfigError(f"two algorithms are named {plugin.NAME!r}, one of them in {place}; rename it")
        found[plugin.NAME] = plugin
    return found


def get_algorithm(name: str) -> LoadedPlugin:
    """The algorithm of this name.

    Raises:
        ConfigError: for an unknown name, listing those there are; when an entry point cannot be loaded or offers too
            little.
    """
    third_party = _third_party()
    if name in _own_names() and not any(name == plugin.NAME for _, plugin in third_party):
        plugin = _own(name)  # without importing the others
        if plugin is not None:
            return plugin
    algorithms = find_algorithms()
    if name not in algorithms:
        raise ConfigError(f"training.algorithm: unknown algorithm {name!r}; there are: {', '.join(sorted(algorithms))}")
    return algorithms[name]


def find_entry_point(name: str) -> EntryPoint | None:
    """The entry point of a third party's algorithm; None for LoomRL's own, and for a name there is not.

    Raises:
        ConfigError: when an entry point cannot be loaded or offers too little.
    """
    return next((point for point, plugin in _third_party() if name == plugin.NAME), None)


def validate(config: "TrainingConfig") -> Section:
    """The algorithm's own config, read from `training.parameters`.

    Raises:
        ConfigError: for an unknown algorithm, or a wrong parameter, naming the key, what was found and what is allowed.
    """
    return read_section(get_algorithm(config.algorithm).Config, config.parameters, "training.parameters")


def parameters_for(config: "TrainingConfig", backend: str) -> Section:
    """The algorithm's own config, read from `training.parameters` and adapted to environments of a back-end.

    Raises:
        ConfigError: for parameters, or a back-end, the algorithm does not accept.
    """
    return get_algorithm(config.algorithm).for_backend(validate(config), backend)


def _own_names() -> dict[str, str]:
    """The modules in our folders by their last names: an algorithm's is named like it."""
    return {
        info.name: f"{package}.{info.name}"
        for package in _PACKAGES
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__)
    }


def _own(name: str) -> LoadedPlugin | None:
    """None for a module that is no algorithm."""
    module = importlib.import_module(place := _own_names()[name])
    return LoadedPlugin.of(module, place) if isinstance(module, AlgorithmPlugin) else None


def _third_party() -> list[tuple[EntryPoint, LoadedPlugin]]:
    plugins = []
    for point in plugin_points(ALGORITHMS):
        plugin = load_plugin(point)
        if not isinstance(plugin, AlgorithmPlugin):
            raise ConfigError(f"{place_of(point)} must offer NAME, Config and build")
        plugins.append((point, LoadedPlugin.of(plugin, place_of(point))))
    return plugins
