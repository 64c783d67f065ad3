"""Safety checks: every module of `loomrl/safety/checks/`, and the entry points of others (`loomrl.safety_checks`)."""

import importlib
import pkgutil
from importlib.metadata import EntryPoint
from typing import Any, cast

from pydantic import ValidationError

from loomrl.errors import ConfigError
from loomrl.safety import checks
from loomrl.safety.check import PROVENANCE, STAGES, Check, CheckConfig
from loomrl.safety.config import SafetyConfig
from loomrl.system.plugins import CHECKS, load_plugin, plugin_points


def find_checks() -> dict[str, Check]:
    """All checks by name, in the order of the names: those of this package's folder, and those of entry points.

    Raises:
        ConfigError: when a check lacks a part of the contract, or cannot be loaded, or two have one name.
    """
    modules = [
        importlib.import_module(f"{checks.__name__}.{found.name}") for found in pkgutil.iter_modules(checks.__path__)
    ]
    modules += [load_plugin(point) for point in plugin_points(CHECKS)]
    found: dict[str, Check] = {}
    for module in modules:
        check = _checked(module)
        if check.NAME in found:
            raise ConfigError(f"two safety checks are named {check.NAME!r}; rename the one in {_name(module)}")
        found[check.NAME] = check
    return dict(sorted(found.items()))


def configured_checks(config: SafetyConfig) -> list[tuple[Check, CheckConfig]]:
    """The enabled checks with their configs, in the order of their names.

    Raises:
        ConfigError: for a check that does not exist, a config it does not accept, or one that switches off what must
            not be: provenance ever, and where `safety_critical: true`, local checks that are mandatory by default.
    """
    found = find_checks()
    if unknown := sorted(config.checks.keys() - found.keys()):
        raise ConfigError(f"safety.checks.{unknown[0]}: no such check; checks: {', '.join(found)}")
    pairs = [(check, _configure(check, config.checks.get(name, {}))) for name, check in found.items()]
    for check, settings in pairs:
        _refuse_switched_off(check, settings, config.safety_critical)
    return [(check, settings) for check, settings in pairs if settings.enabled]


def check_entry_points(config: SafetyConfig) -> list[EntryPoint]:
    """The entry points that the enabled checks of others come from; empty where there are none.

    Raises:
        ConfigError: as `configured_checks` does.
    """
    if not (points := plugin_points(CHECKS)):
        return []
    enabled = {check.NAME for check, _ in configured_checks(config)}
    return [point for point in points if load_plugin(point).NAME in enabled]


def _refuse_switched_off(check: Check, settings: CheckConfig, safety_critical: bool) -> None:
    if check.STAGE == PROVENANCE:
        why = "nothing is known about a policy whose chain of evidence is not whole"
    elif safety_critical and check.LOCAL and check.Config.model_fields["mandatory"].default:
        why = "with `safety_critical: true` this check decides"
    else:
        return
    for key in ("enabled", "mandatory"):
        if not getattr(settings, key):
            raise ConfigError(f"safety.checks.{check.NAME}.{key}: found false, but {why}; remove this key")


def _configure(check: Check, values: dict[str, Any]) -> CheckConfig:
    try:
        return check.Config.model_validate(values)
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(["safety", "checks", check.NAME, *(str(part) for part in detail["loc"])])
        allowed = ", ".join(sorted(check.Config.model_fields))
        raise ConfigError(
            f"{key}: {detail['msg']}, found {detail['input']!r}; keys of this check: {allowed}"
        ) from error


def _checked(module: Any) -> Check:
    for part in ("NAME", "STAGE", "LOCAL", "Config", "examine"):
        if not hasattr(module, part):
            raise ConfigError(f"safety check {_name(module)} has no {part}; see docs/safety.md")
    if module.STAGE not in STAGES:
        raise ConfigError(f"safety check {_name(module)}: STAGE {module.STAGE!r}; stages: {', '.join(STAGES)}")
    return cast(Check, module)


def _name(module: Any) -> str:
    return str(getattr(module, "__name__", module))
