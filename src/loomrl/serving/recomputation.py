"""Recompute logged decisions and compare them with what was answered, bit for bit.

Each decision is computed anew from what its record says was observed, with the verified files of the version that
decided, by the function the server decides with. Random numbers come back from the record's `draw` (see
`loomrl.serving.policy.exploration`). Decisions are asked for many at once; where a bit differs, those of one request
are asked for again as they were together then, for a batch of another size may be computed in another order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import LoomRLError
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.decisions.actions import check_action
from loomrl.serving.decisions.choosing import Choices, Substitute, choose
from loomrl.serving.policy.exploration import Draws, probability_of
from loomrl.serving.policy.model import STATE_OUT, NoAnswer, ServedPolicy, runtime
from loomrl.serving.policy.sources import FolderSource, RegistrySource
from loomrl.storage.audit.history import chains
from loomrl.storage.audit.records import DECISION, digest, expand, is_taken_over
from loomrl.storage.audit.sealing import is_sealed
from loomrl.storage.audit.segments import checked_records, segments
from loomrl.storage.model_signature import is_signed
from loomrl.system.http.problems import Problem

_BATCH = 512
_SHOWN = 20  # differences kept in full
_MARKS = ("certified", "clipped")  # of choices, besides what every record holds

Record = dict[str, Any]
Episode = tuple[str, str | None]  # agent and episode id


@dataclass
class ReplayReport:
    """What replaying found. Equal: every decision asked for was recomputed, and every bit was the same.

    `by` counts the equal ones by who decided, `not_replayed` those that could not be recomputed by the reason. `notes`
    say what else a reader should know, such as another runtime.
    """

    num_decisions: int = 0
    num_equal: int = 0
    by: Counter[str] = field(default_factory=Counter)  # of the equal ones: policy, explored, shield, override, ...
    # "chance": explored with random numbers that are not on record; as likely as then
    num_different: int = 0
    differences: list[str] = field(default_factory=list)  # the first of them
    not_replayed: Counter[str] = field(default_factory=Counter)  # by reason
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differed, and nothing was left out."""
        return not self.num_different and not self.not_replayed

    def differs(self, difference: str) -> None:
        """Count one record that recomputes differently; the first few are kept as text in `differences`."""
        self.num_different += 1
        self.differences += [difference] if len(self.differences) < _SHOWN else []


@dataclass(frozen=True)
class _Logged:
    """A decision of the log, and where its random numbers come from."""

    entry: Record
    draws: Draws | None

    def stream(self) -> np.random.Generator:
        assert self.draws is not None, "who explored has a draw"
        return self.draws.at(self.entry["draw"], self.entry.get("row", 0))


class LogRecomputation:
    """Replays decisions of one or all policies; `folder` holds the files of versions that are in no registry.

    `version` picks one version's decisions, `limit` the first so many.
    """

    def __init__(
        self,
        version: str | None = None,
        limit: int | None = None,
        folder: Path | None = None,
        on_progress: Callable[[int], None] = lambda _done: None,
    ) -> None:
        self._version, self._limit, self._folder, self._on_progress = version, limit, folder, on_progress
        self._models: dict[tuple[str, str], ServedPolicy | str] = {}
        self._states: dict[Episode, NDArray[Any]] = {}  # (M,) each: what recurrent policies remember
        self.report = ReplayReport()

    def run(self, policy: str | None = None) -> ReplayReport:
        """Replay the chains of one policy, or of all (None), into `report`, which is returned.

        What cannot be recomputed, for its files or its random numbers are gone, is counted there.

        Raises:
            ArtifactError: naming a line of the log that was changed.
        """
        for chain in chains(policy):
            self._states = {}  # an episode is decided by one server
            self._replay_chain(chain)
        return self.report

    def _replay_chain(self, chain: Path) -> None:
        waiting: dict[str, list[_Logged]] = {}
        loaded: dict[str, Record] = {}
        draws: Draws | None = None
        for entry in _records(chain):
            if entry["kind"] == "open":
                draws = Draws(entry["draws"]) if "draws" in entry else None
                self._note_runtime(entry)
            elif entry["kind"] == "loaded":
                self._compare(chain.parent.name, waiting.pop(entry["version"], []), loaded)
                loaded[entry["version"]] = entry
            elif entry["kind"] == DECISION and self._version in (None, entry["version"]):
                if self.report.num_decisions == self._limit:
                    break
                self.report.num_decisions += 1
                batch = waiting.setdefault(entry["version"], [])
                if len(batch) >= _BATCH and batch[-1].entry["sequence"] != entry["sequence"]:
                    self._compare(chain.parent.name, batch, loaded)
                    batch.clear()
                batch.append(_Logged(entry, draws))
        for batch in waiting.values():
            self._compare(chain.parent.name, batch, loaded)

    def _compare(self, policy: str, batch: list[_Logged], loaded: dict[str, Record]) -> None:
        """Replay decisions under one version's name."""
        self._on_progress(self.report.num_decisions)
        if not batch:
            return
        version = batch[0].entry["version"]
        model = self._model(policy, version, loaded.get(version))
        if isinstance(model, str):
            self.report.not_replayed[model] += len(batch)
            return
        asked = []
        for logged in batch:
            if (missing := _missing(logged, model)) is not None:
                self.report.not_replayed[missing] += 1
            elif _is_by_chance(logged.entry):
                self._conclude(logged, _chance_differs(logged.entry, model))
            elif _is_ordered(logged.entry):
                self._conclude(logged, _order_differs(logged.entry, model))
            else:
                asked.append(logged)
        for alike in _askable_together(asked, model):
            substitute = self._substitute(policy, alike[0].entry, model, loaded)
            if isinstance(substitute, str):
                self.report.not_replayed[substitute] += len(alike)
            elif model.memory_size:
                self._ask_in_episodes(alike, model, substitute)
            else:
                self._ask(alike, model, substitute)

    def _ask(self, asked: list[_Logged], model: ServedPolicy, substitute: Substitute | None) -> None:
        different = [logged for logged, difference in _compared(asked, model, substitute) if difference is not None]
        sequences = {logged.entry["sequence"] for logged in different}
        for sequence, request in groupby(asked, key=lambda logged: logged.entry["sequence"]):
            if sequence not in sequences:
                for logged in request:
                    self._conclude(logged, None)
            else:  # as they were asked for then
                for logged, difference in _compared(list(request), model, substitute):
                    self._conclude(logged, difference)

    def _ask_in_episodes(self, request: list[_Logged], model: ServedPolicy, substitute: Substitute | None) -> None:
        """Decisions of one request by a recurrent policy, with what it remembers from those replayed before."""
        known, states = [], []
        for logged in request:
            state = self._state_before(logged.entry, model)
            if isinstance(state, str):
                self.report.not_replayed[state] += 1
            else:
                known.append(logged)
                states.append(state)
        after: dict[Episode, NDArray[Any]] = {}
        for logged, difference in _compared(known, model, substitute, np.array(states, np.float32), after):
            self._conclude(logged, difference)
        self._states |= after

    def _state_before(self, entry: Record, model: ServedPolicy) -> NDArray[Any] | str:
        """What went into a decision, as far as the log leads to it: its digest is on record."""
        mark = entry["memory"]
        begun = np.zeros(model.memory_size, np.float32) if mark["step"] == 0 else None
        state = self._states.get(_episode(entry)) if begun is None else begun
        if state is None or digest(state) != mark["digest"]:
            return "what its episode remembered does not follow from the part of the log that was replayed"
        return state

    def _substitute(
        self, policy: str, entry: Record, model: ServedPolicy, loaded: dict[str, Record]
    ) -> Substitute | str | None:
        """What acted where the policy must not, or why it cannot be had."""
        mark = entry.get("substitute")
        if mark is None:
            return None
        if "action" in mark:
            return Substitute(action=np.asarray(mark["action"], model.manifest.outputs["action"]["dtype"]))
        version = self._model(policy, mark["version"], loaded.get(mark["version"]))
        return version if isinstance(version, str) else Substitute(version)

    def _conclude(self, logged: _Logged, difference: str | None) -> None:
        entry = logged.entry
        if difference is not None:
            self.report.differs(f"{entry['decision_id']} of version {entry['version']}: {difference}")
            return
        self.report.num_equal += 1
        self.report.by[_decided_by(entry)] += 1

    def _model(self, policy: str, version: str, loaded: Record | None) -> ServedPolicy | str:
        """The verified files of a version, or why they cannot be had. They must be those that decided."""
        model = self._models.get((policy, version))
        if model is None:
            model = self._models[policy, version] = self._load(policy, version)
        if isinstance(model, str):
            return model
        if loaded is None:  # from before there were settings: everybody explored like this
            model.exploration = ExplorationConfig(kind="policy")
            return model
        model.exploration = ExplorationConfig.model_validate(loaded.get("exploration", {}))
        manifest = model.manifest
        for name, found in (("onnx_sha256", manifest.onnx_sha256), ("shield_sha256", manifest.shield_sha256)):
            if loaded[name] != found:
                return (
                    f"version {version} is another one now: its {name} is {found}, that of who decided {loaded[name]}"
                )
        return model

    def _load(self, policy: str, version: str) -> ServedPolicy | str:
        try:
            folder = self._folder or Path(version)
            in_folder = self._folder is not None or folder.is_dir()
            # Not signed is no reason: the files are those that were registered, and that the log says decided.
            source = FolderSource(policy, {}) if in_folder else RegistrySource(policy, require_signature=False)
            fetched = source.fetch(str(folder))
            if not in_folder and not is_signed(fetched):
                self.report.notes.append(f"version {version} of {policy} is not signed")
            return ServedPolicy.load(fetched, version)
        except LoomRLError as error:
            return f"version {version} cannot be had: {error}"

    def _note_runtime(self, opening: Record) -> None:
        here = runtime()
        if opening.get("runtime", here) != here:
            note = f"decided by {opening['runtime']}, replayed by {here}: last digits may differ"
            self.report.notes += [note] if note not in self.report.notes else []


def _records(chain: Path) -> Iterator[Record]:
    return (one for entry in checked_records(*segments(chain)) for one in expand(entry))


def _missing(logged: _Logged, model: ServedPolicy) -> str | None:
    """What a record lacks to be replayed."""
    entry = logged.entry
    if is_sealed(entry["observation"]):
        return f"its observation is sealed with the key {entry['observation']['key']!r}, which is not configured"
    if _is_by_chance(entry):
        is_known = model.chooses and model.guard is None and not model.memory_size
    else:
        is_drawn = entry["exploration_flag"] and not _is_ordered(entry)
        is_known = not is_drawn or (logged.draws is not None and entry.get("draw") is not None)
    return None if is_known else "its record does not say which random numbers it used"


def _is_by_chance(entry: Record) -> bool:
    """Whether it was drawn by a release that put no random numbers on record."""
    return entry["exploration_flag"] and "draw" not in entry and not _is_ordered(entry)


def _is_ordered(entry: Record) -> bool:
    """Whether a person named the action, for this decision or as the fallback, so that no policy was asked."""
    return entry["value"] is None and is_taken_over(entry)


def _askable_together(asked: list[_Logged], model: ServedPolicy) -> list[list[_Logged]]:
    """Those with one substitute; of a recurrent policy those of one request, for each may need the one before."""
    found: dict[Any, list[_Logged]] = {}
    for logged in asked:
        alike = logged.entry["sequence"] if model.memory_size else repr(logged.entry.get("substitute"))
        found.setdefault(alike, []).append(logged)
    return list(found.values())


def _episode(entry: Record) -> Episode:
    return entry["agent_id"], entry["episode_id"]


def _decided_by(entry: Record) -> str:
    """`override`, `kill_switch`, `fallback`, `shield`, `explored`, `chance` or `policy`."""
    if is_taken_over(entry):
        return str(entry.get("role", "override"))
    if entry["shield"] is not None:
        return "shield"
    if entry["exploration_flag"]:
        return "explored" if "draw" in entry else "chance"
    return "policy"


def _order_differs(entry: Record, model: ServedPolicy) -> str | None:
    """An override's mark says what was ordered; a fallback's action is the record's own, and must be one there is."""
    action = (entry["override"] or {}).get("action")
    try:
        ordered = np.asarray(check_action(entry["action"] if action is None else action, model))
    except Problem as problem:
        return f"what was ordered is none of the policy's actions: {problem.message}"
    logged = np.asarray(entry["action"], ordered.dtype)
    hashed = ("action_hash", entry["action_hash"], digest(ordered))
    return _first_difference([("action", logged, ordered), hashed, ("propensity", entry["propensity"], 1.0)])


def _chance_differs(entry: Record, model: ServedPolicy) -> str | None:
    """Where the draw cannot be repeated: whether the action had the probability that is on record, to seven digits."""
    observed = np.array(entry["observation"], model.dtype).reshape(1, *model.shape)
    try:
        answer = model.answer(observed)
    except NoAnswer as error:
        return f"there is no answer now: {error}"
    action = np.asarray(entry["action"], answer.action.dtype)
    probability = probability_of(model, answer, 0, action)
    if not np.isclose(entry["propensity"], probability, rtol=1e-7, atol=0.0):
        return f"propensity was {entry['propensity']}, is {probability}"
    return _first_difference(
        [
            ("observation_digest", entry["observation_digest"], digest(observed[0])),
            ("action_hash", entry["action_hash"], digest(action)),
            ("value", entry["value"], float(answer.value[0])),
        ]
    )


def _compared(
    asked: list[_Logged],
    model: ServedPolicy,
    substitute: Substitute | None,
    states: NDArray[Any] | None = None,
    after: dict[Episode, NDArray[Any]] | None = None,
) -> Iterator[tuple[_Logged, str | None]]:
    """Each with what differs when they are asked for together; puts into `after` what is remembered then."""
    if not asked:
        return
    entries = [logged.entry for logged in asked]
    observed = np.array([entry["observation"] for entry in entries], model.dtype).reshape(-1, *model.shape)
    to_explore = [bool(entry.get("asked_to_explore", entry["exploration_flag"])) for entry in entries]
    try:
        choices = choose(model, observed, to_explore, lambda row: asked[row].stream(), states, substitute)
    except NoAnswer as error:
        if len(asked) == 1:
            yield asked[0], f"there is no answer now: {error}"
            return
        for row, logged in enumerate(asked):
            own = None if states is None else states[row : row + 1]
            yield from _compared([logged], model, substitute, own, after)
        return
    for row, logged in enumerate(asked):
        if after is not None:
            after[_episode(logged.entry)] = choices.outputs[STATE_OUT][row]
        yield logged, _difference(logged.entry, observed[row], choices, row)


def _difference(entry: Record, observed: NDArray[Any], choices: Choices, row: int) -> str | None:
    action = choices.action[row]
    marks = [(name, bool(entry.get(name)), choices.marks[name][row]) for name in _MARKS if name in choices.marks]
    return _first_difference(
        [
            ("observation_digest", entry["observation_digest"], digest(observed)),
            ("action", np.asarray(entry["action"], action.dtype), action),
            ("action_hash", entry["action_hash"], digest(action)),
            ("value", entry["value"], float(choices.value[row])),
            ("propensity", entry["propensity"], choices.propensity[row]),
            ("exploration_flag", entry["exploration_flag"], choices.explored[row]),
            ("shield", entry["shield"], choices.shield[row]),
            *marks,
        ]
    )


def _first_difference(pairs: Iterable[tuple[str, Any, Any]]) -> str | None:
    for name, logged, computed in pairs:
        if _bits(logged) != _bits(computed):
            return f"{name} was {logged}, is {computed}"
    return None


def _bits(value: Any) -> Any:
    """Numbers by their bytes: 0.0 equals -0.0, but is not the same."""
    return value if value is None or isinstance(value, str | dict) else np.asarray(value).tobytes()
