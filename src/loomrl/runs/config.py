"""The one strict reader of `configs/`: one file per policy, `key=value` overrides on top."""

import itertools
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.seeds import FIRST_TRAINING_SEED, VALIDATION_SEEDS
from loomrl.errors import ConfigError
from loomrl.evaluation.config import EvaluationConfig
from loomrl.export.config import ExportConfig
from loomrl.promotion.config import PromotionConfig
from loomrl.runs.tuning.config import TuningConfig
from loomrl.safety.config import SafetyConfig
from loomrl.serving.config import ServingConfig
from loomrl.serving.guardian.config import MonitoringConfig
from loomrl.shadow.config import ShadowConfig
from loomrl.system.files import write_atomic
from loomrl.system.schema import Section, explain
from loomrl.training.config import TrainingConfig

_KEY = re.compile(r"^( *)[^\s#-][^#]*:\s*(#.*)?$")  # one that has its value below
_DASH = re.compile(r"^( *)- +")


class PolicyConfig(Section):
    """Everything about one policy, as `configs/POLICY.yaml` says it. The sections DVC tracks as parameters must stand
    there, if only as `{}`. Sections that contradict each other, held-out seeds that overlap above all, raise
    `ValueError`."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    environment: EnvironmentConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    safety: SafetyConfig
    export: ExportConfig
    shadow: ShadowConfig = Field(default_factory=ShadowConfig)
    promotion: PromotionConfig = Field(default_factory=PromotionConfig)
    monitoring: MonitoringConfig = Field(default_factory=MonitoringConfig)
    serving: ServingConfig = Field(default_factory=ServingConfig)
    tuning: TuningConfig | None = None

    @model_validator(mode="after")
    def _approved(self) -> "PolicyConfig":
        if self.safety.safety_critical and self.promotion.approval != "human":
            raise ValueError("`safety.safety_critical: true` demands `promotion.approval: human`")
        return self

    @model_validator(mode="after")
    def _held_out(self) -> "PolicyConfig":
        """Episodes that judge a policy are met neither in training nor by another judge."""
        ranges = self._held_out_seeds()
        for name, seeds in ranges.items():
            if seeds.stop > FIRST_TRAINING_SEED:
                raise ValueError(
                    f"{_seeds(name, seeds)} reach into training's own, {FIRST_TRAINING_SEED} ... "
                    f"{2 * FIRST_TRAINING_SEED - 1}; lower {name}.first_seed"
                )
        for (first, seeds), (second, others) in itertools.combinations(ranges.items(), 2):
            if max(seeds.start, others.start) < min(seeds.stop, others.stop):
                raise ValueError(
                    f"{_seeds(first, seeds)} and {_seeds(second, others)} overlap, but held-out seeds must be apart; "
                    f"change {first}.first_seed or {second}.first_seed"
                )
        return self

    @model_validator(mode="after")
    def _validated_apart(self) -> "PolicyConfig":
        """Where tasks are held out, it follows from the seeds which pick the policy and which judge it."""
        if not self.environment.kwargs.get("held_out_share"):
            return self
        first, last = VALIDATION_SEEDS.start, VALIDATION_SEEDS.stop - 1
        for name, seeds in self._held_out_seeds().items():
            picks = name == "training.validation"
            is_inside = first <= seeds.start and seeds.stop - 1 <= last
            is_outside = seeds.stop <= first or last < seeds.start
            if not (is_inside if picks else is_outside):
                raise ValueError(
                    f"{_seeds(name, seeds)} must {'' if picks else 'not '}be of {first} ... {last}, with which tasks "
                    "are drawn that pick the policy (environment.kwargs.held_out_share); "
                    f"change {name}.first_seed"
                )
        return self

    def _held_out_seeds(self) -> dict[str, range]:
        return {
            "training.validation": self.training.validation.seeds,
            "evaluation": self.evaluation.seeds,
            "safety": self.safety.own_seeds,
            "shadow": self.shadow.seeds,
            "shadow.consequences": self.shadow.consequences.seeds,
        }


def _seeds(name: str, seeds: range) -> str:
    return f"the seeds of {name}, {seeds.start} ... {seeds.stop - 1},"


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> PolicyConfig:
    """Read a policy's config, checked, with overrides on top: keys with dots, such as `training.seed`, and their
    values.

    Raises:
        ConfigError: naming the file, the key, what was found and what is allowed; also when there is no such file.
    """
    document = _read_yaml(path)
    for key, value in (overrides or {}).items():
        _set(document, key, value, path)
    try:
        config = PolicyConfig.model_validate(_plain(document))
    except ValidationError as error:
        raise ConfigError(explain(error, PolicyConfig, f"{path}: ", "(top level)")) from error
    if config.name != path.stem:
        raise ConfigError(f"{path}: name: found {config.name!r}, but the file is named {path.stem!r}; make them equal")
    return config


def write_overrides(path: Path, overrides: Mapping[str, Any]) -> PolicyConfig:
    """Check overrides, then write them into the file, its comments kept; returns the new config.

    The tracked file is what DVC reads its parameters from, so this is what `dvc exp run --set-param` does too.

    Raises:
        ConfigError: when the config is not valid with them, or the file's indentation cannot be kept; it stays as it
            is. ArtifactError: when the file cannot be written.
    """
    config = load_config(path, overrides)
    if overrides:
        document = _read_yaml(path)
        for key, value in overrides.items():
            _set(document, key, value, path)
        text = StringIO()
        _yaml(like=path.read_text()).dump(document, text)
        if _plain(_yaml().load(text.getvalue())) != _plain(document):
            raise ConfigError(f"{path} could not be written in its own indentation; indent it by two spaces throughout")
        write_atomic(path, text.getvalue().encode())
    return config


def parse_overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Turn `["training.seed=2"]` into `{"training.seed": 2}`; values are YAML, an empty one is None.

    Raises:
        ConfigError: when a setting is not `key=value`, or its value is not YAML.
    """
    overrides: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {setting!r}: expected key=value, for example training.seed=2")
        try:
            overrides[key.strip()] = _plain(_yaml().load(value)) if value.strip() else None
        except YAMLError as error:
            raise ConfigError(f"--set {setting!r}: the value is not YAML: {error}") from error
    return overrides


def _yaml(like: str | None = None) -> YAML:
    """A reader and writer that keeps comments, quotes and, with a text to be `like`, its indentation."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    if like is not None:
        mapping, sequence, offset = _indentation(like)
        yaml.indent(mapping=mapping, sequence=sequence, offset=offset)
    return yaml


def _indentation(text: str) -> tuple[int, int, int]:
    """How far a text indents mappings below their key, what stands in lists, and dashes: its first ones say so."""
    mapping, listed = 2, (4, 2)
    mappings, lists = [], []
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line, below in zip(lines, lines[1:], strict=False):
        key = _KEY.match(line)
        if key is None:
            continue
        depth = len(key.group(1))
        dash = _DASH.match(below)
        if dash is not None and len(dash.group(1)) >= depth:
            lists.append((len(dash.group(0)) - depth, len(dash.group(1)) - depth))
        elif dash is None and (inside := len(below) - len(below.lstrip())) > depth:
            mappings.append(inside - depth)
    return (mappings or [mapping])[0], *(lists or [listed])[0]


def _read_yaml(path: Path) -> Any:
    try:
        document = _yaml().load(path.read_text())
    except FileNotFoundError as error:
        near = ", ".join(sorted(other.name for other in path.parent.glob("*.yaml"))) or "none"
        raise ConfigError(f"{path} does not exist; configs there: {near}") from error
    except (OSError, YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected a mapping of sections, found {type(document).__name__}")
    return document


def _set(document: Any, key: str, value: Any, path: Path) -> None:
    *parents, last = key.split(".")
    node = document
    for depth in range(len(parents) + 1):
        if not isinstance(node, dict):
            holder = ".".join(parents[:depth])
            raise ConfigError(f"{path}: {key}: {holder} is {node!r}, which holds no keys; set {holder} itself")
        if depth < len(parents):
            node = node.setdefault(parents[depth], {})
    node[last] = value


def _plain(value: Any) -> Any:
    """ruamel's round-trip containers and scalars as plain Python values."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, ScalarBoolean):  # one with an anchor; Python knows it as an int
        return bool(value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
