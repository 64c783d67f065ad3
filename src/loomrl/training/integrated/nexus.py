"""Trains the policy of a gym with many actors that play its episodes:

nexus_worker = NexusWorker(num_workers=2)
nexus_worker.register_gym_environments(gym.environments)
distributed_training = nexus_worker.distribute_rl_training(gym_integration)
results = await distributed_training.run_training_loop(max_iterations=100)
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field

from loomrl.errors import ConfigError
from loomrl.gym.facade import GymEnvironment
from loomrl.gym.registered import RegisteredEnvironment
from loomrl.system.schema import ArgumentSection
from loomrl.training.distributed.cluster import connected
from loomrl.training.integrated import GymPPOIntegration, IntegrationResults
from loomrl.training.integrated.players import Compression, RemotePlayers


class NexusConfig(ArgumentSection):
    """The settings of a `NexusWorker`.

    Attributes:
        num_workers: actors that play, of a CPU each.
        address: `HOST:PORT` of a Ray cluster's head, or "auto"; None: a cluster is begun on this machine.
        hang_timeout_seconds: an actor that plays its share for longer is replaced.
        compression: of the weights that are sent to actors.

    Raises:
        ConfigError: naming the field, what was found and what is allowed.
    """

    CALLED: ClassVar[str] = "NexusWorker"

    num_workers: int = Field(default=2, ge=1)  # actors that play, of a CPU each
    address: str | None = Field(
        default=None, pattern=r"^(auto|[^:/]+:\d+)$"
    )  # of a head; None: a cluster is begun here
    hang_timeout_seconds: float = Field(default=300.0, gt=0)  # an actor that plays its share for longer is replaced
    compression: Compression = "none"  # of the weights that are sent


class NexusWorker:
    """Spreads the episodes of trainings in the gym over the actors of a Ray cluster. Takes `NexusConfig`'s fields, and
    raises ConfigError for wrong ones.

    Where this process is connected to a cluster already (`ray.init`), that is used; one that is begun here ends with
    this process, or with `ray.shutdown`.
    """

    def __init__(self, **settings: Any) -> None:
        self.config = NexusConfig(**settings)
        self._environments: dict[str, GymEnvironment] = {}

    def register_gym_environments(self, environments: Mapping[str, GymEnvironment | RegisteredEnvironment]) -> None:
        """Add environments, by name: trainings that are distributed from now on are played in these, and in those
        registered before.

        Raises:
            ConfigError: for an environment that is of no domain, and so has no tasks to hand out.
        """
        for name, one in environments.items():
            if not isinstance(one, GymEnvironment):
                raise ConfigError(
                    f"environment {name} is of no domain of LoomRL Gym; train in it with DistributedTrainer"
                )
            self._environments[name] = one

    def distribute_rl_training(self, gym_integration: GymPPOIntegration) -> "DistributedGymTraining":
        """Have the episodes of an integration played by actors, in the environments that were registered; without any
        in the integration's own. Its policy learns in this process.

        Raises:
            ConfigError: for an environment whose domain is not the integration's, without Ray, or where the cluster
                does not answer or has too little for the actors.
        """
        if self._environments:
            gym_integration.environments.replace(self._environments)
        return DistributedGymTraining(self.config, gym_integration)


class DistributedGymTraining:
    """A training whose episodes actors play. Close it when it is no longer needed, or use it in an `async with`.

    Raises:
        ConfigError: without Ray, or where the cluster does not answer or has fewer CPUs than `num_workers`.
    """

    def __init__(self, config: NexusConfig, gym_integration: GymPPOIntegration) -> None:
        ray = connected(config.num_workers, config.address, "NexusWorker.address")
        if (there := ray.cluster_resources().get("CPU", 0.0)) < config.num_workers:
            raise ConfigError(
                f"NexusWorker.num_workers {config.num_workers}: the Ray cluster has {there:g} CPUs; lower it, or add "
                "machines"
            )
        self._players = RemotePlayers(
            config.num_workers,
            gym_integration.ppo_trainer.policy,
            gym_integration.config.max_message_tokens,
            config.hang_timeout_seconds,
            config.compression,
        )
        self.gym_integration = gym_integration

    @property
    def actors(self) -> list[Any]:
        """The Ray handles of the actors that play now."""
        return self._players.actors

    async def run_training_loop(self, max_iterations: int) -> IntegrationResults:
        """Run `GymPPOIntegration.run_training_loop` with the episodes played by actors; returns its results. They
        depend on the seed and the number of actors, not on whether actors were lost.

        Raises:
            LoomRLError: as that method does; when an actor raises an error or actors are lost again and again.
        """
        self.gym_integration.players = self._players
        try:
            return await self.gym_integration.run_training_loop(max_iterations)
        finally:
            self.gym_integration.players = None

    async def close(self) -> None:
        """End the actors that play; the policy stays in the integration."""
        self._players.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
