import json
from datetime import date
from enum import StrEnum
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from loomrl.errors import ConfigError
from loomrl.runs.config import PolicyConfig, load_config, parse_overrides, write_overrides
from loomrl.system.schema import Section
from loomrl.training.config import TrainingConfig

ROOT = Path(__file__).resolve().parents[2]
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
        ({"training.seed.deep": 1}, r"training\.seed: .*valid integer, found \{'deep': 1\}"),
        ({"name.of.it": 1}, r"pole\.yaml: name\.of\.it: name is 'pole', which holds no keys; set name itself"),
        ({"safety.constraints": [{"name": "a", "quantity": "speed", "low": 0}]}, r"safety\.constraints\.0\.quantity"),
        ({"safety.constraints": [{"name": "a", "quantity": "reward"}]}, r"needs `low`, `high` or both"),
        ({"safety.safety_critical": True}, r"demands `promotion\.approval: human`"),
        ({"name": "other"}, r"the file is named 'pole'"),
        ({"safety.num_episodes": True}, r"safety\.num_episodes: .*valid integer, found True"),
        ({"safety.num_episodes": "7"}, r"safety\.num_episodes: .*valid integer, found '7'"),
        ({"safety.num_episodes": 7.0}, r"safety\.num_episodes: .*valid integer, found 7\.0"),
        ({"safety.safety_critical": "yes"}, r"safety\.safety_critical: .*valid boolean, found 'yes'"),
        ({"safety.safety_critical": 1}, r"safety\.safety_critical: .*valid boolean, found 1"),
        ({"safety.confidence": True}, r"safety\.confidence: .*valid number, found True"),
        ({"training.validation.stop_at_return": "500"}, r"stop_at_return: .*valid number, found '500'"),
        ({"environment.path": 3}, r"environment\.path: .*found 3"),
        ({"environment.version": 5}, r"environment\.version: .*valid string, found 5; put quotes around it"),
        (
            {"safety.waivers": [{"claim": "a", "person": "A. Person", "reason": "a stand", "expires": 86400}]},
            r"safety\.waivers\.0\.expires: .*valid date, found 86400",
        ),
        (
            {"safety.waivers": [{"claim": "a", "person": "A. Person", "reason": "a stand", "expires": "soon"}]},
            r"safety\.waivers\.0\.expires: .*'soon'",
        ),
        (
            {"safety.constraints": [{"name": "a", "quantity": "length", "low": 9, "per": "step"}]},
            r"length is known once per episode; set `per: episode`",
        ),
        (
            {"evaluation.first_seed": 2_000_383},
            r"evaluation, 2000383 \.\.\. 2000482, and the seeds of safety, 2000000 \.\.\. 2000383, overlap",
        ),
        (
            {"training.validation.first_seed": 1_000_099},
            r"training\.validation, 1000099 \.\.\. 1000114, and the seeds of evaluation, 1000000 \.\.\. 1000099,",
        ),
        ({"shadow.first_seed": 1_999_601}, r"safety, .* and the seeds of shadow, 1999601 \.\.\. 2000000,"),
        (
            {"safety.checks": {"statistical_limits": {"max_episodes": 1_000_001}}},
            r"training\.validation, 3000000 \.\.\. 3000015, and the seeds of safety, 2000000 \.\.\. 3000000, overlap",
        ),
        (
            {"safety.checks": {"statistical_limits": {"max_episodes": 384}}},
            r"statistical_limits\.max_episodes: found 384, but 384 episodes are played anyway \(num_episodes\)",
        ),
        (
            {"safety.first_seed": 2**30 - 383},
            r"safety, 1073741441 \.\.\. 1073741824, reach into training's own, 1073741824 \.\.\. 2147483647",
        ),
        (
            {"environment.kwargs": {"held_out_share": 0.2}, "training.validation.first_seed": 0},
            r"training\.validation, 0 \.\.\. 15, must be of 3000000 \.\.\. 3999999, with which tasks are drawn",
        ),
        (
            {"environment.kwargs": {"held_out_share": 0.2}, "evaluation.first_seed": 3_999_000},
            r"evaluation, 3999000 \.\.\. 3999099, must not be of 3000000 \.\.\. 3999999, with which tasks are drawn",
        ),
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


def test_seeds_may_be_neighbours(config: Path) -> None:
    seeds = {"training.validation.first_seed": 0, "evaluation.first_seed": 16, "safety.first_seed": 2**30 - 384}
    loaded = load_config(config, {**seeds, "shadow.first_seed": 116})
    assert (loaded.training.validation.seeds.stop, loaded.safety.seeds.stop) == (16, 2**30)


def test_what_yaml_and_json_can_say_in_only_one_way_is_read(config: Path) -> None:
    waiver = "[{claim: a, person: A. Person, reason: a stand, expires: 2030-01-31}]"
    settings = [
        "environment.path=code",
        f"safety.waivers={waiver}",
        "safety.constraints=[{name: a, quantity: reward, low: -1}]",
    ]
    loaded = load_config(config, parse_overrides([*settings, "training.validation.stop_at_return=500"]))
    assert loaded.environment.path == Path("code")
    assert loaded.safety.waivers[0].expires == date(2030, 1, 31)
    assert isinstance(loaded.training.validation.stop_at_return, float)
    document = json.loads(json.dumps(loaded.model_dump(mode="json")))
    assert PolicyConfig.model_validate(document) == loaded
    assert PolicyConfig.model_validate_json(loaded.model_dump_json()) == loaded


def test_a_boolean_with_an_anchor_is_a_boolean(config: Path) -> None:
    config.write_text(config.read_text().replace("evaluation: {}", "evaluation: {render: &no false}"))
    assert load_config(config).evaluation.render is False


class Kind(StrEnum):
    SOFT = "soft"


class Various(Section):
    sizes: tuple[int, ...] | None = None
    names: frozenset[str] = frozenset()
    kind: Kind = Kind.SOFT
    place: str | Path = "here"


def test_sections_of_plugins_read_lists_and_texts_as_their_own_types() -> None:
    read = Various.model_validate({"sizes": [64, 32], "names": ["a"], "kind": "soft", "place": "there"})
    assert (read.sizes, read.names, read.kind, read.place) == ((64, 32), {"a"}, Kind.SOFT, "there")
    assert Various.model_validate_json(read.model_dump_json()) == read
    for wrong in ({"sizes": ["64"]}, {"sizes": [True]}, {"sizes": "64"}, {"names": "a"}, {"kind": "hard"}):
        with pytest.raises(ValidationError):
            Various.model_validate(wrong)


@pytest.mark.parametrize("dash", [0, 2, 4], ids="dash {}".format)
@pytest.mark.parametrize("step", [2, 4], ids="step {}".format)
def test_a_files_own_indentation_is_kept(config: Path, step: int, dash: int) -> None:
    inner, item, below = " " * step, " " * (step + dash), " " * (step + dash + 2)
    config.write_text(
        "name: pole\nenvironment: {id: CartPole-v1}\n"
        f"training:\n{inner}total_env_steps: 1000\n{inner}seed: 1  # any\n"
        f"evaluation: {{}}\nsafety:\n{inner}constraints:  # two\n"
        f"{item}- name: short\n{below}quantity: length\n{below}high: 9\n\n"
        f"{item}- {{name: low, quantity: reward, low: 0}}\n"
        "export: {}\n"
    )
    before = config.read_text()
    write_overrides(config, {"training.seed": 7})
    assert config.read_text() == before.replace("seed: 1", "seed: 7")
    write_overrides(config, {"training.seed": 1})
    assert config.read_text() == before


@pytest.mark.parametrize(("total", "interval"), [(1_000, 20_000), (2_000_000, 20_000), (50_000_000, 500_000)])
def test_long_trainings_are_cut_about_a_hundred_times(total: int, interval: int) -> None:
    assert TrainingConfig(total_env_steps=total).checkpoint_interval_env_steps == interval


def test_what_a_default_follows_from_is_all_that_is_named(config: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(config, {"training.total_env_steps": 0})
    assert "total_env_steps" in str(raised.value)
    assert "checkpoint_interval_env_steps" not in str(raised.value)
