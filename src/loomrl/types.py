"""What crosses the boundaries between stages.

Shapes: T steps, B environments. Everything that is written to a file is a `Document`; arrays that live only in
memory are plain frozen dataclasses.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import not_
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loomrl.system.schema import Document

FloatArray = NDArray[np.floating[Any]]
Json = dict[str, Any]


# --- environment ------------------------------------------------------------------------------------------------


class EnvironmentSpec(Document):
    """What an environment is: enough to construct it again.

    `entry_point` is `module:Class`, `kwargs` are the arguments it is called with. `observation` and `action` are the
    spaces a policy sees, as JSON (see `loomrl.environment.spaces`).
    """

    name: str
    version: str
    entry_point: str
    kwargs: Json = Field(default_factory=dict)
    max_episode_steps: int | None = None  # where episodes are truncated; None: nowhere
    reward_threshold: float | None = None  # the return from which on it counts as solved; None: not declared
    # How many observations are stacked into one; 1: none are. Left out where it is 1, so that snapshots taken before
    # there was such a thing keep their bytes.
    frame_stack: int = Field(default=1, exclude_if=lambda frames: frames == 1)
    frame: Json | None = Field(default=None, exclude_if=lambda space: space is None)  # the space of each frame
    # Parameter -> the range it is drawn from anew for each episode.
    randomize: dict[str, Json] = Field(default_factory=dict, exclude_if=not_)
    # The config of the shield around it, see `loomrl.environment.resolve.shield_of`; None: no shield.
    shield: Json | None = Field(default=None, exclude_if=lambda shield: shield is None)
    observation: Json
    action: Json
    num_agents: int = 1


class DynamicsFingerprint(Document):
    """SHA-256 digests of seeded rollouts that were recorded in an environment; a change of its dynamics shows in them.

    `rollouts` is that of the file that keeps them, `exact` of their values to the bit, `toleranced` of the first steps
    of each episode, rounded to multiples of `tolerance`. `arithmetic` is that of what elementary functions compute on a
    machine: where it is equal, `exact` must be equal too; elsewhere only those first steps are compared, and may
    deviate by `tolerance`, relative to 1 + the recorded magnitude.
    """

    num_episodes: int
    num_steps: int
    exact: str
    toleranced: str
    tolerance: float
    arithmetic: str
    rollouts: str


class EnvironmentSnapshot(Document):
    """An immutable, content-addressed environment. `digest` covers all other fields."""

    digest: str
    spec: EnvironmentSpec
    source_digest: str  # SHA-256 of the archive of its source
    source_root: str  # the package or module that holds the entry point, as an importable name
    source_roots: list[str]  # all packages and modules the archive holds, `source_root` first
    dependencies: dict[str, str]  # distribution -> version, with a digest behind where files of it were edited
    dynamics: DynamicsFingerprint


# --- acting -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Act:
    """What an act function returns for a batch of observations."""

    action: NDArray[Any]  # (B, *action)
    log_prob: FloatArray | None = None  # (B,)
    value: FloatArray | None = None  # (B,)
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)  # (B, ...): kept in the trajectory's extras
    memory: FloatArray | None = None  # (B, M): what a recurrent policy wants back with the next observations


class ActFunction(Protocol):
    """Chooses actions for a batch of raw observations: `act(obs, rng)`.

    One that returns a `memory` is called with it, `act(obs, rng, memory=...)`, from the second call on; a row of zeros
    is that of an episode's start. Others take no more than two arguments.
    """

    def __call__(self, obs: NDArray[Any], rng: np.random.Generator, *args: Any, **memory: Any) -> Act: ...


@dataclass(frozen=True)
class Trajectory:
    """T steps of B environments. `next_obs` is the true successor, also where an episode ended."""

    obs: NDArray[Any]  # (T, B, *obs)
    action: NDArray[Any]  # (T, B, *action)
    reward: FloatArray  # (T, B)
    terminated: NDArray[np.bool_]  # (T, B)
    truncated: NDArray[np.bool_]  # (T, B)
    next_obs: NDArray[Any]  # (T, B, *obs)
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)  # log_prob, value, ...: (T, B)
    cost: FloatArray | None = None  # (T, B), where environments tell one: `info["cost"]`
    cut_short: NDArray[np.bool_] | None = None  # (B,) whose episode `cut` truncated

    @property
    def num_transitions(self) -> int:
        """Number of transitions in the trajectory, T x B."""
        return self.reward.size

    def cut(self) -> "Trajectory":
        """A copy in which every episode that goes on after the last step is truncated there; `cut_short` marks those.

        It is for environments whose episodes cannot be saved at a checkpoint.
        """
        truncated = self.truncated.copy()
        truncated[-1] |= ~self.terminated[-1]
        return replace(self, truncated=truncated, cut_short=truncated[-1] & ~self.truncated[-1])

    def unusable_reward(self) -> tuple[int, float] | None:
        """(environment, reward) of the earliest reward that float32 cannot hold, NaN included; None where it holds
        all."""
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(self.reward.astype(np.float32))  # (T, B)
        if not bad.any():
            return None
        step, environment = np.argwhere(bad)[0]
        return int(environment), float(self.reward[step, environment])


@dataclass(frozen=True)
class Episode:
    """One whole episode, L steps long."""

    seed: int  # that the environment was reset with
    obs: NDArray[Any]  # (L, *obs)
    action: NDArray[Any]  # (L, *action)
    reward: FloatArray  # (L,)
    next_obs: NDArray[Any]  # (L, *obs)
    terminated: bool
    truncated: bool
    info: dict[str, FloatArray] = field(default_factory=dict)  # numeric info keys, each (L,)
    success: bool | None = None  # None where the environment does not say

    @property
    def length(self) -> int:
        """Number of steps in the episode."""
        return len(self.reward)

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of the episode's rewards."""
        return float(np.sum(self.reward, dtype=np.float64))

    @property
    def cost(self) -> FloatArray | None:
        """What each step cost, (L,); None where environments tell none."""
        return self.info.get("cost")

    @property
    def episode_cost(self) -> float | None:
        """The undiscounted sum of the episode's costs; None where the environment reports none."""
        return None if self.cost is None else float(np.sum(self.cost))


class Policy(Protocol):
    """Gives actions (B, *action) for raw observations (B, *obs), equal ones for equal ones; the normaliser is
    inside."""

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]: ...  # (B, *obs) -> (B, *action)


# --- training ---------------------------------------------------------------------------------------------------


class ComputingProcess(Document):
    """A process that a policy was computed by, as it describes itself."""

    name: str  # "learner 0", "worker 1 of learner 0"
    engine: str  # "compiled", "torch" or "device"
    device: str  # "cpu", or the name of the GPU
    num_threads: int
    processor: str
    software: str  # SHA-256 over the digests of the code that learns, and the versions of what it computes with


class TrainingReport(Document):
    """How a policy came to be. Holds nothing that differs between two equal runs.

    `engine`, `device`, `num_threads` and `processor` are those of the processes that learnt; where these differ they
    are listed with their names.
    """

    algorithm: str
    seed: int
    total_env_steps: int
    stop_reason: str  # "total_env_steps", "stagnation" or "stop_at_return"
    snapshot_digest: str
    policy_digest: str  # SHA-256 of policy.safetensors
    parameters: Json  # the algorithm's config in full
    final_metrics: dict[str, float]  # of the last update, and `best_validation_return`, `best_validation_step`
    engine: str = "torch"  # what computed the updates: "compiled", "torch" or "device"
    backend: str = "serial"  # what stepped the environments it learnt from
    device: str = "cpu"  # what the engine "device" ran on: "cpu", or the name of the GPU
    num_threads: int
    processor: str  # family and instruction set: results are equal bit for bit only within it
    processes: list[ComputingProcess] = Field(default_factory=list)  # all that ever computed something of it
    warnings: list[str] = Field(default_factory=list)  # what the figures do not show, with the fix


# --- evaluation -------------------------------------------------------------------------------------------------


class Interval(Document):
    """An estimate with a two-sided confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float  # such as 0.95
    method: str  # its name, for people


class TextSample(Document):
    """One text a policy was given, and its answer."""

    seed: int  # of the episode
    prompt: str
    answer: str
    episode_return: float


class EvaluationReport(Document):
    """A policy's performance on fixed held-out seeds."""

    policy_digest: str
    snapshot_digest: str
    num_episodes: int
    seeds: list[int]  # one for each episode
    mean_return: Interval
    interquartile_mean_return: Interval
    mean_length: float  # steps
    min_length: int
    max_length: int
    reward_threshold: float | None
    success_rate: Interval | None  # None where neither a threshold nor a success signal exists
    mean_cost: Interval | None = None  # of an episode's summed costs; None where the environment tells none
    data_valid: bool  # the Great Expectations verdict
    picture: str  # file name of the picture of the distribution
    replay: str | None  # file name of the rendered episode
    replay_missing_because: str | None = None
    samples: list[TextSample] = Field(default_factory=list, exclude_if=not_)  # where it answers texts


# --- safety -----------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """The outcome of one claim."""

    PROVED = "proved"
    SUPPORTED = "statistically_supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    WAIVED = "waived"


class Bound(Document):
    """A measured bound and the limit it is held against."""

    kind: str  # e.g. "clopper-pearson upper", "maximum", "count"
    measured: float
    limit: float
    unit: str = ""


class Evidence(Document):
    """A file of evidence beside the case."""

    uri: str  # relative to the case
    sha256: str


class Counterexample(Document):
    """A failure anyone can replay, of a claim that is refuted, or undecided though failures were seen."""

    description: str
    seed: int | None  # of the episode; None where none shows it
    evidence: Evidence | None
    replay_command: str | None  # for a shell; None where there is none


class Waiver(Document):
    """A named person accepts an unmet claim until a date."""

    claim: str
    person: str
    reason: str
    expires: str  # ISO date


class LabelKind(StrEnum):
    """Why a claim is shown and not counted."""

    REPEATS = "repeats"  # it is about the same event as another claim
    CANNOT_BE_FALSE = "cannot_be_false"  # whatever the policy does, it would hold
    NEVER_BROKEN = "never_broken"  # no episode that was played for it, or for the label, broke its limit
    RECORD = "record"  # it compares digests that the same run wrote


class ClaimLabel(Document):
    """Why a claim is shown and not counted, with the id of the claim it repeats."""

    kind: LabelKind
    reason: str
    claim: str | None = None


class Claim(Document):
    """One statement about a policy, how it was examined and what came out.

    It says what was examined, what that does not establish, and what would have made it false; older claims do not.
    """

    id: str
    stage: str
    statement: str
    mandatory: bool  # whether the gate refuses unless it is proved, supported or waived
    method: str
    verdict: Verdict
    assumptions: list[str] = Field(default_factory=list)
    confidence: float | None = None  # with which it is supported or refuted; None where nothing is estimated
    # Of the hypothesis that it is false: supported at confidence c where at most 1 - c. None where nothing is drawn.
    p_value: float | None = Field(default=None, exclude_if=lambda value: value is None)
    bound: Bound | None = None
    num_samples: int | None = None
    evidence: list[Evidence] = Field(default_factory=list)
    counterexample: Counterexample | None = None
    waiver: Waiver | None = None
    verdict_before_waiver: Verdict | None = None
    finding: str = ""  # what came out, in one sentence
    examined: str = Field(default="", exclude_if=not_)
    not_established: str = Field(default="", exclude_if=not_)
    false_if: str = Field(default="", exclude_if=not_)
    label: ClaimLabel | None = Field(default=None, exclude_if=lambda label: label is None)


class GateDecision(Document):
    """Whether the policy may go on, and which claims stand in the way."""

    passed: bool
    blocking: list[str]  # claim ids
    reason: str


class SafetyCase(Document):
    """All claims about one policy in one environment; reproducible to the byte."""

    schema_version: int = 1
    policy_digest: str
    snapshot_digest: str
    evaluation_digest: str
    claims: list[Claim]
    decision: GateDecision
    controls: dict[str, list[str]] = Field(default_factory=dict)  # control -> claim ids
    not_applicable: dict[str, str] = Field(default_factory=dict, exclude_if=not_)  # check -> why
    tools: dict[str, str] = Field(default_factory=dict)  # distribution -> version


# --- export -----------------------------------------------------------------------------------------------------


class ParityReport(Document):
    """The exported graph against the trained network on the same observations."""

    num_observations: int
    num_visited: int
    num_random: int
    action_mismatches: int
    num_near_ties: int = 0  # differing actions whose logits lie within the limit: not mismatches
    max_abs_difference: dict[str, float]  # output name -> difference
    max_scaled_difference: dict[str, float] = Field(default_factory=dict)  # ... / its scale: held to the limit
    limit: float
    passed: bool
    rechecked_claims: dict[str, Verdict] = Field(default_factory=dict)
    formats: dict[str, "ParityReport"] = Field(default_factory=dict, exclude_if=not_)  # beside ONNX


TorchFormat = Literal["torchscript", "torch_export"]
# Beside the graph, where the config asks for them. Export writes these files; a version holds no other one of torch.
TORCH_FILES: dict[TorchFormat, str] = {"torchscript": "policy.torchscript.pt", "torch_export": "policy.pt2"}


class PolicyManifest(Document):
    """All that serving needs to know about `policy.onnx`."""

    schema_version: int = 1
    name: str
    onnx_sha256: str
    policy_digest: str
    snapshot_digest: str
    case_sha256: str
    environment: EnvironmentSpec
    algorithm: str
    action_kind: str  # discrete, multi_discrete, multi_binary, text, continuous (clipped Gaussian) or squashed (tanh)
    inputs: dict[str, Json]  # name -> {"dtype": "float32", "shape": [-1, 4]}
    outputs: dict[str, Json]
    probe_observations: list[Any]  # (N, *obs): answered at load time ...
    probe_actions: list[Any]  # (N, *action): ... and compared with these
    out_of_distribution: Json | None = None  # calibration: see loomrl.safety.checks.out_of_distribution
    constraints: list[Json] = Field(default_factory=list, exclude_if=not_)  # as safety.constraints
    shield_sha256: str | None = Field(default=None, exclude_if=lambda digest: digest is None)  # of the file beside it
    certified: Json | None = Field(default=None, exclude_if=lambda found: found is None)  # `sha256`, `on_uncertified`
    formats: dict[str, Json] = Field(default_factory=dict, exclude_if=not_)  # TorchFormat -> its `file`, `sha256`
    safety_critical: bool = Field(default=False, exclude_if=not_)  # records are synced before answers
    opset: int


# --- shadow and promotion ---------------------------------------------------------------------------------------


class Continuation(Document):
    """What follows from one state, once by the champion and once by the challenger: same seed, same actions so far.

    The seed, the step, and what was `held` before it or the `noise`, lead to the state again.
    """

    seed: int
    step: int  # decisions before it
    observation: list[float]  # flattened, the first 32 numbers
    champion_action: Any = None
    challenger_action: Any = None
    champion_return: float  # of the whole episode
    challenger_return: float
    violated: list[str] = Field(default_factory=list)  # limits that the challenger broke and the champion kept
    disturbed: str = ""  # what was held or the noise, in words
    held: Any = None  # the action that was held before the step
    held_steps: int = 0
    noise: float = 0.0  # of the sensors, in deviations of what the champion observes
    weight: float = 1.0  # of what follows, in a mean over the disagreements of the episode


class LimitFollowed(Document):
    """A declared limit, counted on what followed."""

    name: str
    per: str  # "episode" or "step"
    limit: float
    num_violating: int  # episodes
    rate: float  # violating episodes, or the mean share of violating steps
    upper: float  # one-sided bounds over episodes; `lower` at a level shared by all claims about what followed
    lower: float
    mandatory: bool = True


class WholeEpisodes(Document):
    """Whole episodes of challenger and champion on the same seeds, as many as decided which of them earns more."""

    num_pairs: int
    challenger_mean: float
    champion_mean: float
    low: float  # one-sided bounds of the mean difference, challenger - champion, at a level for each look
    high: float
    margin: float  # how much less the promotion's rule `not_worse` allows
    verdict: Verdict
    demanded: bool  # whether promotion asks that the challenger is not worse
    seed: int  # of the pair in which the challenger lost most
    lost: float


class Travel(Document):
    """How far continuous actions move from one step to the next, in halves of their range, mean over steps."""

    challenger: float
    champion: float
    excess: Interval  # of what is allowed, mean over episodes on the same seeds
    allowed: float  # in the mean episode
    seed: int  # of the episode in which it is most
    episodes_needed: int | None = None  # to show that it is allowed, where these leave that undecided


class Noisy(Document):
    """Episodes under noise of the sensors that the champion withstands: the same noise for both."""

    deviations: float = 0.0  # of what the champion observes; 0: none was added
    withstood: float = 0.0  # the most that the champion withstood of what was tried
    num_episodes: int = 0  # that the champion withstood
    num_failed: int = 0  # of those, in which the challenger failed
    seed: int | None = None  # of the one in which it lost most
    why_not: str = ""


class Consequences(Document):
    """What followed where challenger and champion differ. Episodes are the units of every figure."""

    examined: bool
    why_not: str = ""  # empty where it was examined
    num_episodes: int = 0
    num_decisions: int = 0
    num_disagreements: int = 0  # decisions in which the two differ
    num_continued: int = 0  # disagreements from which the challenger went on, at most one of an episode
    limits: list[LimitFollowed] = Field(default_factory=list)
    return_difference: Interval | None = None  # challenger - champion, mean over disagreements
    return_scale: float | None = None  # what the champion earns above random actions
    burst_steps: int = 0  # how long another action is held to disturb an episode; 0: not disturbed
    num_disturbed: int = 0  # episodes so disturbed that went on after it
    num_failed: int = 0  # of those, in which the challenger failed and the champion did not
    num_champion_failed: int = 0  # and the other way round; 0 in reports from before these were counted
    why_not_disturbed: str = ""
    whole: WholeEpisodes | None = None  # these three are None in reports from before they were examined
    travel: Travel | None = None  # None where actions are no continuous ones, too
    noisy: Noisy | None = None
    worst: list[Continuation] = Field(default_factory=list)
    # Id of a claim -> the episode that speaks most against it; of whole episodes and of travel a seed says all.
    counterexamples: dict[str, Continuation] = Field(default_factory=dict)


class ShadowReport(Document):
    """The challenger beside the champion on the same traffic."""

    policy: str
    challenger_version: str
    champion_version: str | None
    traffic: str  # "episodes" or "live"
    num_decisions: int
    num_episodes: int
    agreement: Interval | None
    action_distance: Interval | None
    value_difference: Interval | None
    would_be_violations: Interval | None  # rate per decision
    latency_seconds: dict[str, float]  # p50, p99 of the server's answers
    challenger_errors: int
    bitwise_equal: bool | None  # served actions against the artifact, where there is no champion
    claims: list[Claim]
    passed: bool
    consequences: Consequences | None = None  # None in reports from before it was examined


class PromotionDecision(Document):
    """What became of a version, and why. `inputs_digest` covers policy, champion, rules and snapshot."""

    policy: str
    version: str
    champion_before: str | None
    decision: str  # "promoted", "refused", "waiting", "unchanged"
    reasons: list[str]
    rules: list[Claim]
    inputs_digest: str
    approved_by: str | None = None
    sums_sha256: str = ""  # of the files that were judged; empty: from before that was kept
