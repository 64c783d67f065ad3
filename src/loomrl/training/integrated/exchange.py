"""Groups to the hub and batches from it, each stamped with the policy version that made it."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from loomrl.language.trajectory.client import HubClient, LeasedBatch
from loomrl.language.trajectory.process import HubProcess
from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.integrated.pool import AttemptGroup


class HubExchange:
    """A hub of its own, with a trainer that registered and environments that joined.

    The hub cuts scores to the limits, refuses sequences that are too long, and drops what an outdated policy made.

    Args:
        config: the limits.
        environments: the names of those that post.
        batch_size: sequences of a batch.
        version: of the policy that acts first.

    Raises:
        ServiceError: from every method, when the hub gives no answer or refuses.
    """

    def __init__(self, config: GymTrainingConfig, environments: Sequence[str], batch_size: int, version: int) -> None:
        self._config, self._names, self._batch_size, self._version = config, environments, batch_size, version
        self._stack = ExitStack()
        self._env_ids: dict[str, int] = {}

    def __enter__(self) -> Self:
        lowest, highest = self._config.reward_limits
        with ExitStack() as stack:
            hub = stack.enter_context(
                HubProcess(
                    lowest_score=lowest,
                    highest_score=highest,
                    max_sequence_tokens=self._config.max_sequence_tokens,
                    max_staleness=self._config.max_staleness,
                )
            )
            self._trainer = stack.enter_context(HubClient(hub.url))
            self._poster = stack.enter_context(HubClient(hub.url))
            self._register()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def post(self, groups: Sequence[AttemptGroup]) -> None:
        """Post groups to the hub, each with the version of the oldest policy in it."""
        for version in sorted({group.version for group in groups}):
            posted = [self._to_wire(group) for group in groups if group.version == version]
            self._poster.post_several(posted, policy_version=version)

    def next_batch(self) -> LeasedBatch | None:
        """The next batch, leased until it is acknowledged; None while too few groups wait."""
        return self._trainer.next_batch()

    def missing_groups(self) -> int:
        """How many groups a batch still lacks; at least 1."""
        waiting = int(self._trainer.status()["queues"]["queued_sequences"])
        return max(1, math.ceil((self._batch_size - waiting) / self._config.group_size))

    def acknowledge(self, batch: LeasedBatch, version: int) -> None:
        """Confirm to the hub that a batch was learnt from, and report the new policy's version."""
        self._trainer.acknowledge(batch)
        self._trainer.set_policy_version(version)

    def disconnect(self, names: Sequence[str]) -> None:
        """Disconnect these environments from the hub: their share of batches goes to the others."""
        for name in names:
            if name in self._env_ids:
                self._poster.disconnect_environment(self._env_ids.pop(name))

    def _to_wire(self, group: AttemptGroup) -> dict[str, Any]:
        return group.to_wire(self._env_ids[group.environment.name])

    def _register(self) -> None:
        self._trainer.register(
            batch_size=self._batch_size,
            max_token_len=self._config.max_sequence_tokens,
            num_steps=2**31,
            starting_step=self._version,
        )
        self._trainer.set_policy_version(self._version)
        self._trainer.next_batch()  # from now on environments may join
        for name in self._names:
            self._env_ids[name] = self._poster.register_environment(
                name, group_size=self._config.group_size, max_token_length=self._config.max_sequence_tokens
            )
