"""The monitors of one version: they collect evidence, and trigger when it suffices."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from loomrl.serving.guardian.evidence import MOST_WAITING, Key, LiveEpisode, VersionEvidence
from loomrl.serving.guardian.monitor import Monitor, Trigger, ValuePlace
from loomrl.serving.guardian.tokens import CORROBORATION, LEAST_REQUESTS, Suspicion, token_of
from loomrl.serving.guardian.units import FEW
from loomrl.serving.guardian.watch import OUT_OF_DISTRIBUTION, REWARD, UNANSWERED, Level, Signs, Watch
from loomrl.serving.guardian.weigher import Beside, Weigher
from loomrl.storage.audit.columns import Columns
from loomrl.types import Json

_MOST_EPISODES = 10_000  # open ones; the oldest are forgotten
_UNNUMBERED = 5  # the number a server counts as until LoomDB has given it one
_NEXT_LOOK = 1.05  # as many returns as at the last one


class VersionMonitors:
    """The monitors of one version at work."""

    def __init__(self, evidence: VersionEvidence, watch: Watch, is_shared: bool) -> None:
        """A monitor whose limit is another than before begins anew, as if what came before had kept it.

        `is_shared`: other servers may have seen more.
        """
        self.evidence, self._watch = evidence, watch
        former = evidence.monitors
        evidence.monitors = {name: _going_on(former.get(name), level) for name, level in watch.levels.items()}
        self._per_episode = {one.monitor for one in watch.limits if one.per_episode and one.monitor in watch.levels}
        self._of_state = {one.monitor for one in watch.limits if one.kind == "observation"} | {OUT_OF_DISTRIBUTION}
        self._per_request = [name for name in watch.shown if name not in self._per_episode]
        self._by_all: dict[str, float] = {}  # monitor -> what all servers' evidence amounts to
        self._others: tuple[VersionEvidence, Beside] | None = None  # of all servers
        self._num_of_token = Counter(map(token_of, evidence.unnamed))  # agents
        self._own_part = 0.5**_UNNUMBERED if is_shared else None
        self._num_returns = [0, 0]  # that came, and that had come when they were last looked at
        self._open = {episode.key: episode for episode in evidence.open_episodes}

    def list_episodes(self) -> None:
        """Put the episodes that still count into the evidence's `open_episodes`."""
        self.evidence.open_episodes = list(self._open.values())

    # --- episodes -----------------------------------------------------------------------------------------------

    def has_open(self, key: Key) -> bool:
        """Whether this version has decided in the episode of this key, and the episode has not ended."""
        return key in self._open and not self._open[key].ended

    def opened(self, key: Key, elsewhere: bool) -> LiveEpisode:
        """The open episode of this key; begun now if there is none. `elsewhere`: another version began it."""
        if self.has_open(key):
            return self._open[key]
        self._open.pop(key, None)
        window = self.evidence.window
        episode = LiveEpisode(*key, cut=elsewhere, is_part=elsewhere, is_taken_over=elsewhere, window=window)
        self._open[key] = episode
        if not self._note_agent(key[0], False):
            episode.number, episode.number_in_window = self.evidence.episodes.count(key[0])
        else:  # its requests count
            before, in_window = self.evidence.requests.of(key[0])
            episode.number, episode.number_in_window = before + in_window + 1, in_window + 1
        self._leave_oldest()
        return episode

    def note_episode(self, key: Key) -> None:
        """Note that this version decides in the episode of this key, and count nothing of it."""
        self._open[key] = LiveEpisode(*key, cut=True, is_part=True)
        self._leave_oldest()

    def _leave_oldest(self) -> None:
        if len(self._open) > _MOST_EPISODES:
            self.leave(next(iter(self._open)))

    def leave(self, key: Key) -> bool:
        """Forget an open episode: it goes on without this version. Returns whether there was one."""
        episode = self._open.pop(key, None)
        if episode is not None:
            episode.cut = episode.is_part = True
        return episode is not None

    def rewarded(self, feedback: Json, key: Key) -> LiveEpisode | None:
        """Add the feedback on a decision in the named episode of this key.

        Returns the episode where that made it whole and no other version decided in it, else None. Where it is `cut`, a
        person decided in it, or the agent asked to explore.
        """
        episode = self._open.get(key)
        if episode is None:
            return None
        episode.num_rewards += 1
        episode.total += feedback["reward"]
        episode.ended |= feedback["terminated"] or feedback["truncated"]
        if not episode.is_whole:
            return None
        del self._open[key]
        return None if episode.is_part else episode

    # --- decisions ----------------------------------------------------------------------------------------------

    def add_single_decisions(self, agent_ids: Sequence[str], signs: Signs, decision_ids: Sequence[str]) -> None:
        """Add the version's own decisions, (B,), each without an episode. `decision_ids`, (B,), are needed where there
        is a reference."""
        evidence = self.evidence
        evidence.num_decisions += len(agent_ids)
        for agent_id in set(agent_ids) - evidence.unnamed.keys():
            self._note_agent(agent_id, True)
        if self.has_reference:
            self._await_rewards(agent_ids, decision_ids)
        rows = np.flatnonzero(np.logical_or.reduce(list(signs.values()))).tolist() if signs else []
        done = 0
        for row in rows:
            self._count(agent_ids[done:row])
            done = row + 1
            self._show(row, signs, agent_ids[row], None)
        self._count(agent_ids[done:])

    def add_decision(
        self, row: int, signs: Signs, agent_id: str, episode: LiveEpisode | None, decision_id: str
    ) -> None:
        """Add one of the version's own decisions: `row` of the batch that `signs` are for. `episode` is None without
        one.
        """
        self.evidence.num_decisions += 1
        self._note_agent(agent_id, episode is None)
        if episode is None and self.has_reference:
            self._await_rewards([agent_id], [decision_id])
        self._show(row, signs, agent_id, episode)

    def taken_over(self, row: int, signs: Signs, episode: LiveEpisode) -> None:
        """Add a decision that a person took, or that the agent asked to explore: `row` of the batch that `signs` are
        for. The state it was taken in is what the version's own decision before it led to; what follows is not."""
        if episode.decided_last:
            number = self._request(episode.agent_id, episode)
            shown = {name: flags for name, flags in signs.items() if name in self._of_state}
            self._add_shown(row, shown, episode.agent_id, episode, number)
        episode.decided_last, episode.is_taken_over = False, True

    def unanswered(self, agent_id: str, episode: LiveEpisode | None) -> None:
        """Add a request that the version had no finite answer to: it counts against it, and shows nothing else."""
        self._note_agent(agent_id, episode is None)
        self._add(UNANSWERED, agent_id, 1.0, self._request(agent_id, episode))

    def _count(self, agent_ids: Sequence[str]) -> None:
        """Requests that nothing speaks against, without an episode."""
        evidence = self.evidence
        for agent_id, more in Counter(agent_ids).items():
            evidence.requests.count(agent_id, more)
            if not evidence.unnamed[agent_id]:
                evidence.episodes.count(agent_id, more)

    def _request(self, agent_id: str, episode: LiveEpisode | None) -> tuple[int, int]:
        """Count one."""
        if episode is None and not self.evidence.unnamed[agent_id]:
            self.evidence.episodes.count(agent_id)  # of one decision, by an agent that names others
        return self.evidence.requests.count(agent_id)

    def _show(self, row: int, signs: Signs, agent_id: str, episode: LiveEpisode | None) -> None:
        number = self._request(agent_id, episode)
        found = self._found_broken(row, signs, episode)
        if found:
            signs = {name: flags for name, flags in signs.items() if name not in found}
        self._add_shown(row, signs, agent_id, episode, number)
        if episode is not None:
            episode.decided_last = True

    def _add_shown(
        self, row: int, signs: Signs, agent_id: str, episode: LiveEpisode | None, number: tuple[int, int]
    ) -> None:
        for name in self._per_request:
            if _speaks(signs, name, row):
                self._add(name, agent_id, 1.0, number)
        for name in self._per_episode:
            if _speaks(signs, name, row):
                self._break_limit(name, agent_id, episode, number)

    def _found_broken(self, row: int, signs: Signs, episode: LiveEpisode | None) -> Sequence[str]:
        """Which limits on the state were broken when another left the episode to this version, and have been since."""
        if episode is None or not (episode.is_taken_over or episode.found_broken):
            return ()
        before = self._of_state if episode.is_taken_over else episode.found_broken
        episode.is_taken_over, episode.found_broken = False, [name for name in before if _speaks(signs, name, row)]
        return episode.found_broken

    def _break_limit(self, name: str, agent_id: str, episode: LiveEpisode | None, number: tuple[int, int]) -> None:
        """An episode breaks a limit once; to an agent that names none each decision is one."""
        evidence = self.evidence
        if not evidence.unnamed[agent_id]:
            if episode is None:
                before, in_window = evidence.episodes.of(agent_id)
                number = before + in_window, in_window
            elif name in episode.broken:
                return
            else:
                episode.broken.append(name)
                number = episode.number, episode.number_in_window * (episode.window == evidence.window)
        self._add(name, agent_id, 1.0, number)

    def signs(self, decisions: Columns) -> Signs:
        """What speaks against the version in which of B decisions, by monitor, (B,) each; nothing for one that all
        satisfy.
        """
        return self._watch.signs(decisions)

    # --- rewards ------------------------------------------------------------------------------------------------

    def has_returns(self) -> None:
        """Note a return of the version, or of what it is held against. The reward is weighed again when there is a
        twentieth more than at the last look.
        """
        self._num_returns[0] += 1
        seen, now = self._num_returns[1], self._num_returns[0]
        if (monitor := self.evidence.monitors.get(REWARD)) is not None and now > seen * _NEXT_LOOK:
            self._num_returns[1] = now
            monitor.is_new = True

    @property
    def has_reference(self) -> bool:
        """Whether returns are held against a stated reference."""
        config = self._watch.config
        return REWARD in self._watch.levels and config.reference is not None and config.reward_range is not None

    def _await_rewards(self, agent_ids: Sequence[str], decision_ids: Sequence[str]) -> None:
        """Keep where decisions without an episode stand among their agents', before they are counted: their rewards
        may come much later, and many at once."""
        evidence, more = self.evidence, Counter[str]()
        for agent_id, decision_id in zip(agent_ids, decision_ids, strict=True):
            more[agent_id] += 1
            counts = evidence.requests if evidence.unnamed[agent_id] else evidence.episodes
            before, in_window = counts.of(agent_id)
            in_window += more[agent_id]
            evidence.reward_places[decision_id] = before + in_window, in_window, evidence.window
        while len(evidence.reward_places) > MOST_WAITING:
            del evidence.reward_places[next(iter(evidence.reward_places))]

    def returned(self, agent_id: str, value: float, of: LiveEpisode | str) -> None:
        """Hold the return of an episode, or the reward of a decision without one (its id), against the stated
        reference; nothing without one.
        """
        config = self._watch.config
        if not self.has_reference or config.reward_range is None:
            return
        low, high = config.reward_range
        missing = (high - min(max(value, low), high)) / (high - low)
        if isinstance(of, LiveEpisode):
            life, in_window, window = of.number, of.number_in_window, of.window
        else:
            life, in_window, window = self.evidence.reward_places.pop(of, (0, 0, ""))
        if missing and life:
            self._add(REWARD, agent_id, missing, (life, in_window * (window == self.evidence.window)))

    # --- what it amounts to -------------------------------------------------------------------------------------

    def look(self, beside: Beside, is_asked: bool = False) -> Trigger | None:
        """Weigh what has come, or with `is_asked` all there is.

        Returns the version's trigger, also one that it had before; None while the evidence does not suffice.
        """
        evidence, weigher = self.evidence, Weigher(self.evidence, self._watch, beside)
        for name, monitor in evidence.monitors.items():
            has_come = monitor.is_new
            if has_come or (is_asked and not weigher.is_paired(name)):
                monitor.look(weigher.num_values(name), self._combined(name, weigher.e_value(name)))
            if evidence.trigger is None and monitor.refutes and not is_asked:
                is_known = not has_come and name in evidence.suspicions
                suspicion = evidence.suspicions[name] if is_known else self._suspicion(name, beside)
                if suspicion is None:
                    evidence.trigger = weigher.trigger(name)
                else:
                    evidence.suspicions[name] = suspicion
        return evidence.trigger

    def _suspicion(self, name: str, beside: Beside) -> Suspicion | None:
        """Where what refutes the version comes from one token alone, and others ask for as many decisions as it.

        A token that was suspected stays so while it asks for little, also when the others fall silent.
        """
        own, former = self.evidence, self.evidence.suspicions.get(name)
        known = own if self._others is None else self._others[0]
        for token, num_agents in (own.num_agents_by_token() | known.num_agents_by_token()).items():
            asked = known.requests_by_token.under(token)
            stays = former is not None and former.token == token and asked < LEAST_REQUESTS
            if not known.others_request_as_much(token) and not stays:
                continue
            e_value = self._e_value_of_others(name, token, beside)
            if e_value < CORROBORATION:
                return Suspicion(
                    version=own.version,
                    monitor=name,
                    token=token,
                    num_agents=num_agents,
                    e_value=own.monitors[name].e_value,
                    e_value_of_others=e_value,
                    num_decisions=own.num_decisions,
                )
        return None

    def _e_value_of_others(self, name: str, token: str, beside: Beside) -> float:
        """What agents of all other tokens show, to this server or to all together."""
        found = Weigher(self.evidence.without(token), self._watch, beside.without(token)).e_value(name)
        if self._others is not None:
            others, beside_all = self._others
            if name in others.monitors:
                all_others = Weigher(others.without(token), self._watch, beside_all.without(token))
                found = max(found, all_others.e_value(name))
        return found

    def describe(self, beside: Beside) -> Json:
        """The version's evidence and the state of each of its monitors, as JSON for `GET /monitors`."""
        self.look(beside, is_asked=self.evidence.trigger is None)
        weigher = Weigher(self.evidence, self._watch, beside)
        told = {
            "control": weigher.control,
            "monitors": {name: weigher.describe(name) for name in self.evidence.monitors},
        }
        return self.evidence.describe() | told

    def set_shared_evidence(self, others: VersionEvidence, beside: Beside, number: int | None) -> None:
        """Use the merged evidence of all servers from now on; `number` is this server's among them."""
        weigher = Weigher(others, self._watch, beside)
        self._others = others, beside
        self._by_all = {name: weigher.e_value(name) for name in others.monitors}
        self._own_part = 0.5 ** (_UNNUMBERED if number is None else number)
        for monitor in self.evidence.monitors.values():
            monitor.is_new = True

    def forget_shared_evidence(self) -> None:
        """Judge by this server's own evidence alone, until there is shared evidence again."""
        self._others, self._by_all, self._own_part = None, {}, None

    def _combined(self, name: str, e_value: float) -> float:
        """Half is staked on what all servers know together, the rest shared out among them for what each knows."""
        if self._own_part is None:
            return e_value
        return (self._by_all.get(name, 1.0) + self._own_part * e_value + 1.0 - self._own_part) / 2.0

    def _add(self, name: str, agent_id: str, value: float, number: tuple[int, int]) -> None:
        monitor = self.evidence.monitors.get(name)
        if monitor is None:
            return
        of_episodes = name in self._per_episode or name == REWARD
        block = 1 if of_episodes and not self.evidence.unnamed[agent_id] else monitor.block
        monitor.add(agent_id, value, ValuePlace(*number, block, has_blocks=self._is_of_few(agent_id)))

    def _is_of_few(self, agent_id: str) -> bool:
        """Whether there are few agents, or few of its token: those may have to show what others show."""
        return len(self.evidence.unnamed) < FEW or self._num_of_token[token_of(agent_id)] < FEW

    def _note_agent(self, agent_id: str, is_unnamed: bool) -> bool:
        """Note a request of this agent; returns whether its first request named no episode."""
        unnamed = self.evidence.unnamed
        if agent_id not in unnamed:
            unnamed[agent_id] = is_unnamed
            self._num_of_token[token_of(agent_id)] += 1
        return unnamed[agent_id]


def _speaks(signs: Signs, name: str, row: int) -> bool:
    """Whether a decision speaks against its version, to one monitor."""
    return name in signs and bool(signs[name][row])


def _going_on(former: Monitor | None, level: Level) -> Monitor:
    if former is None or (former.limit, former.block) != (level.limit, level.block):
        return Monitor.at(level)
    former.threshold = level.threshold
    return former
