"""Groups to a hub and batches from it, each stamped with the policy version that made it."""

import math
from collections.abc import Callable, Sequence

from loomrl.language.learning.sources import HubSource
from loomrl.language.trajectory.client import HubClient
from loomrl.language.trajectory.process import HubProcess
from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.integrated.pool import AttemptGroup, EnvironmentPool


def hub_for(config: GymTrainingConfig) -> HubProcess:
    """A hub that cuts scores to the config's limits, refuses sequences that are too long, and drops what an outdated
    policy made. It runs in a `with` statement."""
    lowest, highest = config.reward_limits
    return HubProcess(
        lowest_score=lowest,
        highest_score=highest,
        max_sequence_tokens=config.max_sequence_tokens,
        max_staleness=config.max_staleness,
    )


class HubExchange(HubSource):
    """Batches of a hub that this process's own environments fill: they play whenever one lacks groups.

    Args:
        client: of the hub, where the trainer registers and the environments join.
        config: the limits.
        environments: those that play and are not in quarantine yet.
        batch_size: sequences of a batch.
        version: of the policy that acts first.
        play: has so many groups of tasks attempted; returns those that did not break.
        publish: has whoever acts take the newest policy; called before a batch is acknowledged.

    Raises:
        ServiceError: from every method, when the hub gives no answer or refuses.
    """

    def __init__(
        self,
        client: HubClient,
        config: GymTrainingConfig,
        environments: EnvironmentPool,
        *,
        batch_size: int,
        version: int,
        play: Callable[[int], Sequence[AttemptGroup]],
        publish: Callable[[], None],
    ) -> None:
        super().__init__(client)
        self._environments, self._play, self._publish = environments, play, publish
        self._batch_size, self._group_size = batch_size, config.group_size
        self._played: list[AttemptGroup] = []
        longest = config.max_sequence_tokens
        client.register(batch_size=batch_size, max_token_len=longest, num_steps=2**31, starting_step=version)
        client.set_policy_version(version)
        client.next_batch()  # from now on environments may join
        self._env_ids = {
            name: client.register_environment(name, group_size=config.group_size, max_token_length=longest)
            for name, environment in environments.environments.items()
            if not environment.is_quarantined
        }

    def take_played(self) -> list[AttemptGroup]:
        """The groups that were played since the last call."""
        played, self._played = self._played, []
        return played

    def acknowledge(self, version: int) -> None:
        """Have whoever acts take the newest policy, then confirm to the hub that the batch collected last was learnt
        from; `version` is the policy's after that update."""
        self._publish()
        super().acknowledge(version)

    def _wait(self) -> None:
        """Have the missing groups played, and post them, each with the version of the oldest policy in it."""
        waiting = int(self._client.status()["queues"]["queued_sequences"])
        groups = self._play(max(1, math.ceil((self._batch_size - waiting) / self._group_size)))
        for version in sorted({group.version for group in groups}):
            posted = [
                group.to_wire(self._env_ids[group.environment.name]) for group in groups if group.version == version
            ]
            self._client.post_several(posted, policy_version=version)
        for name in self._environments.quarantined:
            if name in self._env_ids:  # its share of batches goes to the others
                self._client.disconnect_environment(self._env_ids.pop(name))
        self._played += groups
