"""Evaluate a policy on held-out seeds: episodes, estimates with intervals, pictures, and the data gate."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from loomrl.environment.collecting.episode_log import succeeded
from loomrl.evaluation.config import EvaluationConfig
from loomrl.evaluation.data_gate import VALIDATION, require_valid, validate
from loomrl.evaluation.expectations import SPACES
from loomrl.evaluation.picture import draw_returns
from loomrl.evaluation.replay import render_episode
from loomrl.evaluation.tables import EPISODES, TRAJECTORIES, episodes_table, steps_table, write_table
from loomrl.statistics.intervals import Statistic, bootstrap_interval, clopper_pearson, interquartile_mean, mean
from loomrl.system.files import canonical_json, sha256, sha256_file, sums, write_json
from loomrl.system.threads import one_thread
from loomrl.types import ActFunction, Episode, EvaluationReport, FloatArray, Interval

REPORT = "evaluation.json"
PICTURE = "returns.png"
REPLAY = "episode.gif"


@one_thread()
def evaluate_policy(
    config: EvaluationConfig, snapshot_folder: Path, policy_folder: Path, output_folder: Path
) -> EvaluationReport:
    """Play the held-out episodes and write the report, the episode data, the pictures and the data gate's verdicts.

    Equal policies in equal snapshots give equal bytes; the rendered episode's, on machines that draw alike. torch runs
    on one thread meanwhile.

    Raises:
        GateRefused: when the data gate finds invalid data; everything has been written by then.
        ArtifactError: when the snapshot or the policy cannot be read, or a file cannot be written.
        ConfigError: when the environment needs a package that is not installed, or the spaces are not of numbers.
        EnvironmentFault: when the environment breaks its API; nothing is written then.
        LoomRLError: when an action is not finite; nothing is written then.
    """
    from loomrl.algorithms.policies.loading import load_policy
    from loomrl.algorithms.policies.policy import WEIGHTS
    from loomrl.environment.snapshots.snapshot import load_snapshot
    from loomrl.environment.spaces import space_from_json
    from loomrl.evaluation.samples import text_samples

    snapshot = load_snapshot(snapshot_folder)
    policy = load_policy(policy_folder)
    seeds = list(config.seeds)
    episodes = play(policy.act, snapshot_folder, seeds, config.num_envs, "evaluation")
    threshold = snapshot.spec.reward_threshold if config.success_return is None else config.success_return
    successes = [succeeded(one.success, one.episode_return, config.success_return, threshold) for one in episodes]

    output_folder.mkdir(parents=True, exist_ok=True)
    spaces = {"observation": snapshot.spec.observation, "action": snapshot.spec.action}
    write_json(output_folder / SPACES, {**spaces, "enforce_observation_bounds": config.enforce_observation_bounds})
    write_table(output_folder / EPISODES, episodes_table(episodes, successes))
    write_table(output_folder / TRAJECTORIES, steps_table(episodes[: config.trajectory_episodes]))
    validation = validate(output_folder)
    validation.write(output_folder / VALIDATION)

    returns = np.array([episode.episode_return for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    costs = np.array([cost for episode in episodes if (cost := episode.episode_cost) is not None])
    robust_mean = _interval(config, returns, interquartile_mean, 1)
    draw_returns(output_folder / PICTURE, returns, lengths, threshold, robust_mean)
    missing = _render(config, policy.act, snapshot_folder, episodes, output_folder)
    report = EvaluationReport(
        policy_digest=sha256_file(policy_folder / WEIGHTS),
        snapshot_digest=snapshot.digest,
        num_episodes=len(episodes),
        seeds=seeds,
        mean_return=_interval(config, returns, mean, 0),
        interquartile_mean_return=robust_mean,
        mean_length=float(np.mean(lengths)),
        min_length=int(lengths.min()),
        max_length=int(lengths.max()),
        reward_threshold=threshold,
        success_rate=_success_rate(successes, config.confidence),
        mean_cost=_interval(config, costs, mean, 2) if len(costs) else None,
        data_valid=validation.success,
        picture=PICTURE,
        replay=None if missing else REPLAY,
        replay_missing_because=missing,
        samples=text_samples(episodes, *(space_from_json(space) for space in spaces.values())),
    )
    report.write(output_folder / REPORT)
    require_valid(validation, output_folder)
    return report


def evaluation_digest(folder: Path) -> str:
    """One SHA-256 over what was measured: every file but the rendered episode, the report without what it says of it.

    Pixels depend on the machine's renderer, and one machine has none: a safety case must not depend on that. The
    stage's `SHA256SUMS` covers the picture too.

    Raises:
        ArtifactError: when the report is missing or torn.
    """
    return digest_measured(EvaluationReport.read(folder / REPORT), sums(folder))


def digest_measured(report: EvaluationReport, file_sums: Mapping[str, str]) -> str:
    """`evaluation_digest` from the report and the SHA-256 of every file of the stage, by its name."""
    measured = report.model_copy(update={"replay": None, "replay_missing_because": None})
    digests = {name: digest for name, digest in file_sums.items() if name != REPLAY}
    return sha256(canonical_json({**digests, REPORT: sha256(measured.to_bytes())}))


def play(act: ActFunction, snapshot_folder: Path, seeds: Sequence[int], num_envs: int, label: str) -> list[Episode]:
    """One episode per seed in environments made from a snapshot, with progress told under `label`.

    Raises:
        LoomRLError: when an action is not finite; the environments do not see it.
        EnvironmentFault: when the environment breaks its API.
        ArtifactError: when the snapshot was changed, or a file of it is missing.
        ConfigError: when the environment needs a package that is not installed.
    """
    from loomrl.environment.collecting.collector import run_episodes
    from loomrl.environment.make import make_envs
    from loomrl.system.events import progress

    done: list[float] = []
    with (
        closing(make_envs(snapshot_folder, min(num_envs, len(seeds)), autoreset="disabled")) as envs,
        progress(f"{label} episodes", len(seeds)) as reporter,
    ):

        def told(episode: Episode) -> None:
            done.append(episode.episode_return)
            reporter.update(len(done), mean_return=sum(done) / len(done))

        return run_episodes(envs, act, seeds, np.random.default_rng(seeds[0]), on_episode=told)


def _interval(config: EvaluationConfig, values: FloatArray, statistic: Statistic, stream: int) -> Interval:
    """A statistic of values, one for each episode; each has random numbers of its own."""
    rng = np.random.default_rng([config.first_seed, stream])
    return bootstrap_interval(values, statistic, config.confidence, config.bootstrap_replicates, rng)


def _success_rate(successes: Sequence[bool | None], confidence: float) -> Interval | None:
    known = [success for success in successes if success is not None]
    return clopper_pearson(sum(known), len(known), confidence) if known else None


def _render(
    config: EvaluationConfig, act: ActFunction, snapshot_folder: Path, episodes: Sequence[Episode], folder: Path
) -> str | None:
    """Render the median episode; returns why not, if not."""
    if not config.render:
        return "evaluation.render is false"
    ordered = sorted(episodes, key=lambda episode: (episode.episode_return, episode.seed))
    return render_episode(act, snapshot_folder, ordered[len(ordered) // 2], folder / REPLAY, config.max_frames)
