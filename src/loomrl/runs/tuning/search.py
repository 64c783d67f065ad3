"""The search itself: an Optuna study whose trials train on the policy's snapshot and are judged by their validations.

Sampler: the tree-structured Parzen estimator (Watanabe 2023, arXiv 2304.11127), seeded by the trial's number. So a
search that was killed goes on as if it had not been: its running trial is taken up with the settings it had, and its
training resumes from its checkpoint.
"""

import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.environment.snapshots.store import store_snapshot
from loomrl.errors import ConfigError, LoomRLError
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.runs.tuning.config import SearchConfig, TuningConfig
from loomrl.system.files import canonical_json, private_database, sha256
from loomrl.system.home import home, inside
from loomrl.system.locks import hold_lock, lock_file
from loomrl.system.schema import Document
from loomrl.training.config import TrainingConfig
from loomrl.types import Json

if TYPE_CHECKING:
    import optuna

SAMPLER_SEED = 0
_EXAMPLE = "tuning: {parameters: {training.parameters.learning_rate: {low: 0.0001, high: 0.01, log: true}}}"


class Trial(Document):
    """Settings that were tried, and the mean over the seeds of their best validation returns."""

    number: int  # 0 for the first
    settings: Json  # key, such as "training.parameters.learning_rate" -> value
    score: float | None  # None: its training failed
    problem: str = ""  # why, where it failed just now


class TuningStudy:
    """The search that the `tuning:` section of one policy's config asks for. Its trials are kept in
    `LOOMRL_HOME/tuning.db` and found again while all that they depend on is equal.

    Raises:
        ConfigError: without that section, when a setting at an end of its range is not accepted, or without a snapshot.
    """

    def __init__(self, path: Path, snapshot_folder: Path) -> None:
        self.path, self.config = path, load_config(path)
        self.tuning = _tuning(path, self.config)
        _check_ends(path, self.tuning)
        self._snapshot = _kept(snapshot_folder, self.config.name)
        self.name = f"{self.config.name}-{self._digest()[:16]}"
        self._work = inside("tuning", self.name)

    def run(self, num_trials: int) -> Iterator[Trial]:
        """Yield each trial as it ends, until the study has `num_trials` of them, those of earlier processes and failed
        ones included. Whoever stops in between goes on with the next call.

        Raises:
            ConfigError: when another process is at a search for this policy.
        """
        with _alone(self.config.name), self._study() as study:
            while (trial := self._next(study, num_trials)) is not None:
                number, settings = trial
                yield self._train(study, number, settings)
                shutil.rmtree(self._work, ignore_errors=True)

    def trials(self) -> list[Trial]:
        """All trials that ended, in their order, those of earlier processes included; the problems of failed ones are
        not kept.
        """
        with self._study() as study:
            ended = [trial for trial in study.trials if trial.state.is_finished()]
        return [Trial(number=trial.number, settings=trial.params, score=trial.value) for trial in ended]

    def training(self, settings: Mapping[str, Any], seed: int) -> TrainingConfig:
        """The config of training for a trial with these settings and this seed.

        Raises:
            ConfigError: when the settings do not go together.
        """
        overrides = {**settings, "training.seed": seed}
        if self.tuning.total_env_steps is not None:
            overrides["training.total_env_steps"] = self.tuning.total_env_steps
        return load_config(self.path, overrides).training

    def command(self, settings: Mapping[str, Any]) -> str:
        """The `loomrl run` command, quoted for a shell, that takes the policy through its life cycle with these
        settings."""
        options = (f"--set {shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in settings.items())
        return " ".join(["loomrl run", shlex.quote(f"configs/{self.path.name}"), *options])

    def _next(self, study: "optuna.Study", num_trials: int) -> tuple[int, Json] | None:
        """The trial that a killed process left, else a new one; None when there are enough."""
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        wanted = {key: _distribution(search) for key, search in self.tuning.parameters.items()}
        for left in study.get_trials(states=(TrialState.RUNNING,)):
            if left.params.keys() == wanted.keys():
                return left.number, left.params
            study.tell(left.number, state=TrialState.FAIL)  # killed before it had all its settings
        number = len(study.trials)
        if number >= num_trials:
            return None
        study.sampler = TPESampler(seed=SAMPLER_SEED + number)
        asked = study.ask(wanted)
        return asked.number, asked.params

    def _train(self, study: "optuna.Study", number: int, settings: Json) -> Trial:
        """Train and tell the study; settings that do not go together, or whose training breaks down, have failed."""
        from optuna.trial import TrialState

        try:
            score = self._score(settings)
        except LoomRLError as error:
            study.tell(number, state=TrialState.FAIL)
            return Trial(number=number, settings=settings, score=None, problem=str(error))
        study.tell(number, score)
        return Trial(number=number, settings=settings, score=score)

    def _score(self, settings: Json) -> float:
        from loomrl.training.train import train_policy

        first, scores = self.config.training.seed, []
        for seed in range(first, first + self.tuning.num_seeds):
            with tempfile.TemporaryDirectory(prefix="loomrl-tuning-") as output:
                report = train_policy(self.training(settings, seed), self._snapshot, Path(output), self._work)
            if (excess := report.final_metrics.get("best_validation_cost_excess", 0.0)) > 0.0:
                raise LoomRLError(f"seed {seed}: the mean cost stayed {excess:.4g} above its limit")
            scores.append(report.final_metrics["best_validation_return"])
        return float(np.mean(scores))

    def _digest(self) -> str:
        from loomrl.training.inputs import inputs_digest

        inputs = inputs_digest(self.training({}, self.config.training.seed), load_snapshot(self._snapshot))
        searched = self.tuning.model_dump(mode="json", exclude={"num_trials"})
        return sha256(canonical_json({"inputs": inputs, "tuning": searched}))

    @contextmanager
    def _study(self) -> Iterator["optuna.Study"]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        database = home() / "tuning.db"
        private_database(database)
        storage = optuna.storages.RDBStorage(f"sqlite:///{database}")
        try:
            yield optuna.create_study(storage=storage, study_name=self.name, direction="maximize", load_if_exists=True)
        finally:
            storage.remove_session()
            storage.engine.dispose()


def best(trials: list[Trial]) -> Trial:
    """The trial with the highest score, of equals the earliest.

    Raises:
        LoomRLError: when none came to one.
    """
    scored = [(trial.score, -trial.number, trial) for trial in trials if trial.score is not None]
    if not scored:
        problem = next((trial.problem for trial in trials if trial.problem), "see the messages above")
        raise LoomRLError(f"none of {len(trials)} trials could be trained; correct `tuning.parameters`: {problem}")
    return max(scored)[2]


def _tuning(path: Path, config: PolicyConfig) -> TuningConfig:
    if config.tuning is None:
        raise ConfigError(f"{path}: tuning: missing; say what to search, for example `{_EXAMPLE}`")
    return config.tuning


def _kept(snapshot_folder: Path, policy: str) -> Path:
    """The snapshot where no other run writes it again."""
    if not snapshot_folder.is_dir():
        raise ConfigError(
            f"{snapshot_folder} is missing: there is no snapshot to train on; take it: `dvc repro environment@{policy}`"
        )
    return store_snapshot(snapshot_folder)


def _check_ends(path: Path, tuning: TuningConfig) -> None:
    """Find settings nobody knows, and values nobody accepts, before hours of training."""
    from loomrl.algorithms.registry import validate

    for key, search in tuning.parameters.items():
        for value in search.choices if search.choices is not None else (search.low, search.high):
            try:
                validate(load_config(path, {key: value}).training)
            except ConfigError as error:
                raise ConfigError(f"{path}: tuning.parameters.{key}: {value!r} is not accepted: {error}") from error


def _distribution(search: SearchConfig) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if search.choices is not None:
        return CategoricalDistribution(search.choices)
    assert search.low is not None
    assert search.high is not None
    if isinstance(search.low, int) and isinstance(search.high, int):
        return IntDistribution(search.low, search.high, log=search.log)
    return FloatDistribution(search.low, search.high, log=search.log)


def _alone(policy: str) -> AbstractContextManager[None]:
    told = f"{policy} is being tuned by another process; wait for it, or end it: both resume"
    return hold_lock(lock_file(f"tuning-{policy}"), 0, lambda: ConfigError(told))
