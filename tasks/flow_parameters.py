"""What a flow run's parameter `overrides` may change in a config: numbers and choices.

Whoever reaches Prefect's API sets the parameters of a flow run. A text that is none of a field's own choices may name
a module, a file or a machine, so only the tracked config and whoever runs commands on this machine may set it. The
same goes for an environment's arguments, whatever their values, and for the keys of a mapping that takes any, such as
`safety.checks`: a key is a text, too. The fields' types decide, so a new field needs no entry here.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from loomrl.algorithms.registry import get_algorithm
from loomrl.errors import ConfigError
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.system.schema import Section

CONSTRUCTOR_ARGUMENTS = ("environment.kwargs", "environment.randomize")
ALLOWED_TEXTS = {"training.distributed.address": ("auto",)}  # the cluster that this machine belongs to, and no other


def load_with_parameters(path: Path, overrides: Mapping[str, Any]) -> PolicyConfig:
    """Read a policy's config with the overrides of a flow run.

    Raises:
        ConfigError: when the config or an override is wrong, or an override changes more than numbers and choices.
    """
    tracked, config = load_config(path), load_config(path, overrides)
    if refused := list(_refused(PolicyConfig, tracked, config, "")):
        raise ConfigError(
            f"the flow run's parameter `overrides` changes {', '.join(refused)}, but a flow run may change numbers and "
            "choices only: names of code, files and machines, keys that may be any, and arguments of environments come "
            f"from {path}; write it there, or run `loomrl run {path} --set KEY=VALUE` on this machine"
        )
    return config


def _refused(annotation: Any, before: Any, after: Any, key: str) -> Iterator[str]:
    """The keys at or below `key` whose values differ by more than numbers and choices."""
    if before == after:
        return
    if key in CONSTRUCTOR_ARGUMENTS:
        yield key
    elif any(isinstance(value, Section | Mapping) for value in (before, after)):
        fields, new = _field_types(annotation, before, key), _entries(after)
        old = _defaults(after) if before is None else _entries(before)
        for name in sorted(old.keys() | new.keys()):
            place = f"{key}.{name}" if key else name
            if name not in fields and (name not in old or name not in new):
                yield place
            else:
                yield from _refused(fields.get(name, _value_type(annotation)), old.get(name), new.get(name), place)
    elif any(isinstance(value, list | tuple | set | frozenset) for value in (before, after)):
        for index, (one, other) in enumerate(zip_longest(before or (), after or ())):
            yield from _refused(annotation, one, other, f"{key}[{index}]")
    elif not all(_is_number_or_choice(annotation, value, key) for value in (before, after)):
        yield key


def _is_number_or_choice(annotation: Any, value: Any, key: str) -> bool:
    if value is None or isinstance(value, Enum | bool | int | float):
        return True
    return value in (*_choices(annotation), *ALLOWED_TEXTS.get(key, ()))


def _entries(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Section):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return value if isinstance(value, Mapping) else {}


def _defaults(value: Any) -> Mapping[str, Any]:
    """What a section that the tracked config leaves out holds where nothing else is said."""
    fields = type(value).model_fields if isinstance(value, Section) else {}
    own = {name: field for name, field in fields.items() if not field.default_factory_takes_validated_data}
    return dict.fromkeys(fields) | {
        name: field.get_default(call_default_factory=True) for name, field in own.items() if not field.is_required()
    }


def _field_types(annotation: Any, value: Any, key: str) -> dict[str, Any]:
    """The types of a section's fields; those of `training.parameters` are of the tracked algorithm's own config."""
    sections = [kind for kind in _parts(annotation) if isinstance(kind, type) and issubclass(kind, Section)]
    types = {name: field.annotation for kind in sections for name, field in kind.model_fields.items()}
    return types | {"parameters": get_algorithm(value.algorithm).Config} if key == "training" else types


def _value_type(annotation: Any) -> Any:
    """The type of a mapping's values, as far as it is declared."""
    return next((get_args(kind)[-1] for kind in _parts(annotation) if get_origin(kind) is dict), Any)


def _choices(annotation: Any) -> list[Any]:
    return [value for kind in _parts(annotation) if get_origin(kind) is Literal for value in get_args(kind)]


def _parts(annotation: Any) -> Iterator[Any]:
    """A type and the members it is composed of, except what a mapping maps to."""
    yield annotation
    if get_origin(annotation) not in (None, Literal, dict):
        for inner in get_args(annotation):
            yield from _parts(inner)
