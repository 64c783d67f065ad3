from pathlib import Path

import pytest
import yaml

from loomrl.config import load_config, parse_overrides, write_overrides
from loomrl.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
MINIMAL = """\
# kept
name: pole
environment: {id: CartPole-v1}
training:
  total_env_steps: 1000  # kept too
evaluation: {}
safety: {}
export: {}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "pole.yaml"
    path.write_text(MINIMAL)
    return path


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads(path: Path) -> None:
    assert load_config(path).name == path.stem


def test_params_name_exactly_the_configs() -> None:
    names = yaml.safe_load((ROOT / "params.yaml").read_text())["policies"]
    assert sorted(names) == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


def test_overrides_are_yaml_values(config: Path) -> None:
    overrides = parse_overrides(["training.seed=2", "environment.kwargs={gravity: 9.5}", "safety.confidence=0.99"])
    loaded = load_config(config, overrides)
    assert (loaded.training.seed, loaded.environment.kwargs, loaded.safety.confidence) == (2, {"gravity": 9.5}, 0.99)


def test_written_overrides_keep_comments_and_the_rest(config: Path) -> None:
    write_overrides(config, {"training.seed": 7})
    text = config.read_text()
    assert "# kept\n" in text
    assert "# kept too" in text
    assert load_config(config).training.seed == 7


def test_a_bad_override_changes_nothing(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.total_env_steps"):
        write_overrides(config, {"training.total_env_steps": -1})
    assert config.read_text() == MINIMAL


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"training.sed": 1}, r"pole\.yaml: training\.sed: unknown key; did you mean 'seed'\? allowed: algorithm"),
        ({"training.seed": "many"}, r"training\.seed: .*integer.*found 'many'"),
        ({"environment": {}}, r"environment\.id: missing"),
        ({"evaluation.confidence": 2}, r"evaluation\.confidence: .*less than 1.*found 2"),
        ({"training.seed.deep": 1}, r"cannot be set inside|not a mapping|training\.seed"),
        ({"safety.constraints": [{"name": "a", "quantity": "speed", "low": 0}]}, r"safety\.constraints\.0\.quantity"),
        ({"safety.constraints": [{"name": "a", "quantity": "reward"}]}, r"needs `low`, `high` or both"),
        ({"safety.safety_critical": True}, r"demands `promotion\.approval: human`"),
        ({"name": "other"}, r"the file is named 'pole'"),
    ],
)
def test_wrong_settings_name_the_file_the_key_and_what_is_allowed(
    config: Path, override: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(config, override)


def test_a_missing_file_names_its_neighbours(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist; configs there: pole\.yaml"):
        load_config(config.with_name("pol.yaml"))


def test_text_that_is_not_yaml_is_named(config: Path) -> None:
    config.write_text("a: [1")
    with pytest.raises(ConfigError, match=r"pole\.yaml cannot be read as YAML"):
        load_config(config)


@pytest.mark.parametrize("setting", ["training.seed", "=3"])
def test_settings_need_a_key_and_a_value(setting: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_overrides([setting])
