"""What a flow run's parameters may change: numbers and choices, and nothing that says which code is loaded."""

import shutil
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from loomrl.errors import ConfigError
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.system.schema import Section
from tasks.flow_parameters import load_with_parameters

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "cartpole.yaml"

CODE: list[dict[str, Any]] = [
    {"environment.entry_point": "subprocess:Popen", "environment.kwargs": {"args": ["id"]}},
    {"environment.entry_point": "os:system"},
    {"environment.id": "evil_module:Env-v0"},
    {"environment.path": "/tmp"},
    {"environment.version": "2"},
    {"environment.kwargs": {"gravity": 3.0}},
    {"environment.kwargs.gravity": 3.0},
    {"environment.randomize": {"gravity": {"low": 1.0, "high": 2.0}}},
    {"environment": {"id": "x", "entry_point": "os:system"}},
    {"training.algorithm": "dqn", "training.parameters": {}},
    {"training.distributed": {"num_learners": 2, "address": "evil.example:6379"}},
    {"shadow.server": "http://evil.example"},
    {"safety.waivers": [{"claim": "x", "person": "mallory", "reason": "none", "expires": "2099-01-01"}]},
    {"safety.constraints": []},
    {"training.validation.objective": "anything"},
    {"safety.checks": {"minimum_return": {"threshold": 1.0}}},
    {"safety.checks.minimum_return": {"enabled": False}},
    {"safety.checks.minimum_return.threshold": 1.0},
    {"training.distributed": {"num_learners": 2, "resources_per_worker": {"accelerator": 1}}},
]
HARMLESS: list[dict[str, Any]] = [
    {"training.seed": 2, "promotion.approval": "human"},
    {"safety.num_episodes": 700},
    {"environment.backend": "serial", "environment.max_episode_steps": 100},
    {"training.parameters.activation": "relu"},
    {"training.parameters.learning_rate": 0.001, "training.parameters.engine": "torch"},
    {"training.distributed": {"num_learners": 2, "address": "auto"}},
    {"training.distributed.num_learners": 2, "training.distributed.address": "auto"},
    {"export.formats": ["torchscript"]},
    {},
]


@pytest.mark.parametrize("overrides", CODE, ids=str)
def test_what_names_code_files_or_machines_is_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="numbers and choices only") as refused:
        load_with_parameters(CONFIG, overrides)
    assert ".".join(next(iter(overrides)).split(".")[:2]) in str(refused.value)
    assert f"loomrl run {CONFIG} --set" in str(refused.value)


@pytest.mark.parametrize("overrides", HARMLESS, ids=str)
def test_numbers_and_choices_are_taken(overrides: dict[str, Any]) -> None:
    assert load_with_parameters(CONFIG, overrides) == load_config(CONFIG, overrides)


def test_what_is_tracked_may_be_repeated_but_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "cartpole.yaml"
    shutil.copy2(CONFIG, path)
    path.write_text(path.read_text().replace("environment:\n", "environment:\n  entry_point: rooms:Room\n", 1))
    load_with_parameters(path, {"environment.entry_point": "rooms:Room"})
    with pytest.raises(ConfigError, match=r"changes environment\.entry_point, but"):
        load_with_parameters(path, {"environment.entry_point": None})


def test_of_an_open_mapping_the_tracked_keys_may_change_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "cartpole.yaml"
    shutil.copy2(CONFIG, path)
    checks = "  checks:\n    minimum_return:\n      threshold: 400\n"
    path.write_text(path.read_text().replace("  checks:\n", checks, 1))
    changed = load_with_parameters(path, {"safety.checks.minimum_return.threshold": 450})
    assert changed.safety.checks["minimum_return"] == {"threshold": 450}
    for key, refused in (
        ("safety.checks.minimum_return.enabled", "enabled"),
        ("safety.checks.robustness.enabled", "robustness"),
    ):
        with pytest.raises(ConfigError, match=rf"changes safety\.checks\..*{refused}, but"):
            load_with_parameters(path, {key: False})
    for overrides in ({"safety.checks": {}}, {"safety.checks.minimum_return": {}}):
        with pytest.raises(ConfigError, match=r"changes safety\.checks\."):
            load_with_parameters(path, overrides)


def test_every_field_that_takes_any_text_is_refused() -> None:
    """A field that is added later is covered, too: here each one of today is tried."""
    tried = 0
    for key, _ in free_texts(PolicyConfig):
        try:
            wanted = load_config(CONFIG, {key: "/some/text"})
        except ConfigError:
            continue  # not a value it takes, or a section that must be set as a whole
        if wanted != load_config(CONFIG):
            tried += 1
            with pytest.raises(ConfigError, match="numbers and choices only"):
                load_with_parameters(CONFIG, {key: "/some/text"})
    assert tried >= 6


def free_texts(section: type[Section], place: str = "") -> Iterator[tuple[str, Any]]:
    """The keys whose values are texts or paths of any kind."""
    for name, field in section.model_fields.items():
        for kind in parts(field.annotation):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from free_texts(kind, f"{place}{name}.")
            elif isinstance(kind, type) and issubclass(kind, str | Path) and not issubclass(kind, Enum):
                yield f"{place}{name}", kind


def parts(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (None, Literal):
        return [annotation]
    return [part for inner in get_args(annotation) for part in parts(inner)]
