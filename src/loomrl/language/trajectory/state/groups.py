"""Which groups a hub takes, and in which form: the policies of its settings."""

import math
from collections.abc import Sequence

from loomrl.language.trajectory.settings import HubSettings
from loomrl.language.trajectory.state.fragments import Fragment, compress
from loomrl.language.trajectory.state.hub import Hub
from loomrl.language.trajectory.state.packing import TrajectoryGroup, find_subset
from loomrl.language.trajectory.wire import Invalid, ScoredGroup, encode_group, refused
from loomrl.system.http.problems import Problem

_RETRY = {"Retry-After": "5"}
_LARGEST_MEAN = 1e100  # of scores


class GroupIntake:
    """Checks groups against a hub's limits and prepares them for its queue."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings

    def check_room(self, hub: Hub) -> None:
        """Check that the hub may take more groups; senders that are refused come again.

        Raises:
            Problem: 503, with `Retry-After`, while as many groups or bytes wait as the settings allow.
        """
        if hub.num_waiting >= self._settings.max_waiting_groups or hub.num_bytes >= self._settings.max_waiting_bytes:
            raise Problem(
                503, f"{hub.num_waiting} groups wait for a trainer, which is all this hub holds; send it again", _RETRY
            )

    def prepare(self, group: ScoredGroup, policy_version: int | None) -> tuple[TrajectoryGroup, Fragment, float | None]:
        """A group as the hub keeps it: its entry (with id -1), its JSON, compressed, and the mean of its scores, None
        where it has none or an absurd one. Scores are cut to the settings' limits in `group` itself. This is the costly
        part, which needs no hub and may run in a thread."""
        low, high = self._settings.lowest_score, self._settings.highest_score
        scores = group["scores"] = [min(max(score, low), high) for score in group["scores"]]
        plain = encode_group(group)
        kept = TrajectoryGroup(-1, len(group["tokens"]), group.get("env_id"), len(plain), policy_version=policy_version)
        return kept, compress(plain), _mean(scores)

    def check(self, hub: Hub, group: ScoredGroup, kept: TrajectoryGroup) -> None:
        """Check that a trainer of this hub can use a group; `kept` is its entry.

        Raises:
            Invalid: where it has more sequences than a batch, a sequence with more tokens than allowed, too old a
                policy, or a size for which its environment's buffer has no room. The message names the limit.
        """
        if 0 < hub.batch_size < kept.size:
            raise Invalid(refused(f"{kept.size} sequences do not fit into a batch of {hub.batch_size}", "tokens"))
        longest = self._settings.max_sequence_tokens
        if longest is not None and any(len(sequence) > longest for sequence in group["tokens"]):
            raise Invalid(refused(f"a sequence has more than the {longest} tokens that are allowed", "tokens"))
        if hub.is_stale(kept):
            raise Invalid(
                refused(
                    f"made by policy version {kept.policy_version}, the trainer has {hub.state.policy_version}: more "
                    f"than {self._settings.max_staleness} behind"
                )
            )
        self._check_buffer(hub, kept)

    def _check_buffer(self, hub: Hub, kept: TrajectoryGroup) -> None:
        environment = hub.environments.get(kept.env_id)
        if environment is None or kept.size == environment.group_size:
            return
        buffered = [one.size for one in hub.buffers.get(environment.env_id, ())]
        full = len(buffered) >= self._settings.max_buffered_groups
        if full and not find_subset([*buffered, kept.size], environment.group_size):
            raise Invalid(
                refused(
                    f"{len(buffered)} groups of environment {environment.env_id} are buffered already that add up to "
                    f"no group of {environment.group_size}; send groups of that size",
                    "tokens",
                )
            )


def parse_version(text: str) -> int | None:
    """The version in a header `X-Policy-Version`; None for an empty text, as of a request without that header.

    Raises:
        Problem: 422 where it is no whole number of at most 18 digits.
    """
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Problem(422, f"X-Policy-Version {text!r} is no count")
    return int(text)


def _mean(scores: Sequence[float]) -> float | None:
    """None also where it is so large that the sums which people see would hold nothing else, or no number at all."""
    mean = sum(scores) / len(scores) if scores else math.inf
    return mean if abs(mean) <= _LARGEST_MEAN else None
