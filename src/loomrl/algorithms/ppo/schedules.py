"""What is the same whichever engine learns: schedules of learning rate and clip range, state, names of the metrics."""

import math
from abc import abstractmethod
from typing import Any, Generic, TypeVar

from loomrl.algorithms.advantages import RewardScaler
from loomrl.algorithms.base import Algorithm, LearntPolicy, State, below
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.algorithms.ppo.config import PPOParameters

ADAPTIVE_LEARNING_RATE_BOUNDS = (1e-5, 1e-2)
STEP_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
_Policy = TypeVar("_Policy", bound=LearntPolicy)


class Schedules:
    """The schedules of PPO's learning rate and clip range."""

    def __init__(self, config: PPOParameters, total_env_steps: int) -> None:
        self._config = config
        self._total_env_steps: float = total_env_steps
        self._env_steps = 0
        self._adaptive_learning_rate = config.learning_rate

    def restart(self, total_env_steps: int | None) -> None:
        """Let linear schedules begin again and end after `total_env_steps`; None: they stay constant."""
        self._total_env_steps, self._env_steps = total_env_steps or math.inf, 0

    def begin(self) -> tuple[float, float]:
        """A pair, the learning rate and the clip range that the next update begins with, as the schedules have them
        now."""
        config = self._config
        left = max(0.0, 1.0 - self._env_steps / self._total_env_steps)
        rates = {
            "constant": config.learning_rate,
            "linear": config.learning_rate * left,
            "adaptive": self._adaptive_learning_rate,
        }
        return rates[config.learning_rate_schedule], config.clip_epsilon * (
            left if config.clip_schedule == "linear" else 1.0
        )

    def adapt(self, rate: float, kl: float) -> float:
        """The learning rate after an epoch with divergence `kl`, steered towards `desired_kl` (Heess et al., arXiv
        1707.02286, appendix): lower after more than twice of that, higher after less than half. `rate` unchanged where
        there is no `desired_kl`."""
        desired = self._config.desired_kl
        if desired is None:
            return rate
        factor = 1.0 / 1.5 if kl > 2.0 * desired else 1.5 if kl < 0.5 * desired else 1.0
        low, high = ADAPTIVE_LEARNING_RATE_BOUNDS
        self._adaptive_learning_rate = min(max(rate * factor, low), high)
        return self._adaptive_learning_rate

    @property
    def follow_divergence(self) -> bool:
        """Whether what follows an epoch depends on how far the policy moved in it."""
        return self._config.target_kl is not None or self._config.desired_kl is not None

    def ends_update(self, kl: float) -> bool:
        """Whether an epoch moved the policy further than `target_kl`, so that the update ends; False where there is
        none."""
        return self._config.target_kl is not None and kl > self._config.target_kl

    def advance(self, num_env_steps: int) -> None:
        """Count the environment steps that an update has used."""
        self._env_steps += num_env_steps

    def state_dict(self) -> State:
        """The environment steps used so far and the adaptive learning rate, as they are now."""
        return {"env_steps": self._env_steps, "learning_rate": self._adaptive_learning_rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the environment steps used and the adaptive learning rate from `state_dict()`."""
        self._env_steps = int(state["env_steps"])
        self._adaptive_learning_rate = float(state["learning_rate"])


class ScheduledPPO(Algorithm, Generic[_Policy]):
    """What PPO is on every engine: schedules, scaling of rewards and state. Acting and gradient steps are a
    subclass's."""

    _scaler_type: type[RewardScaler] = RewardScaler

    def __init__(
        self, config: PPOParameters, policy: _Policy, total_env_steps: int, peers: LearnerGroup = ALONE
    ) -> None:
        self.config, self._policy, self._peers = config, policy, peers
        self.num_envs, self.rollout_length = config.num_envs, config.steps_per_rollout
        self._scaler = self._scaler_type(config.num_envs, config.gamma, peers) if config.normalize_rewards else None
        self._schedules = Schedules(config, total_env_steps)

    @property
    def policy(self) -> _Policy:
        """The policy as it is now: the same object all along, changed by `update`."""
        return self._policy

    def restart(self, total_env_steps: int | None) -> None:
        """Go on with new episodes. Linear schedules begin again and end after `total_env_steps`; None: they stay
        constant."""
        self._schedules.restart(total_env_steps)
        if self._scaler is not None:
            self._scaler.restart()

    @abstractmethod
    def _optimizer_state(self) -> State:
        """Copies of Adam's state by name."""

    @abstractmethod
    def _load_optimizer(self, state: State) -> None:
        """Continue from `_optimizer_state()`, in place."""

    def state_dict(self) -> State:
        """State of the policy with its normaliser, the optimiser, the schedules and the reward scale."""
        state: State = {f"policy.{name}": value for name, value in self._policy.arrays().items()}
        state |= {f"optimizer.{name}": value for name, value in self._optimizer_state().items()}
        state |= self._schedules.state_dict()
        if self._scaler is not None:
            state |= {f"reward_scaler.{name}": value for name, value in self._scaler.state_dict().items()}
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm, in place."""
        self._policy.load_arrays(below("policy.", state))
        self._load_optimizer(below("optimizer.", state))
        self._schedules.load_state_dict(state)
        if self._scaler is not None:
            self._scaler.load_state_dict(below("reward_scaler.", state))
