"""The engine that `InferenceEngine()` makes: in this process, for whatever policy it is given."""

from collections.abc import Sequence
from typing import Any

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.errors import ConfigError, ServiceError
from loomrl.language.inference.acting import ActionEngine, ActionRollout
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.inference.engine import Completions, InferenceEngine, PauseMode, Prompt, Sampling
from loomrl.language.policies.policy import LanguagePolicy

_Engine = type[BuiltinEngine] | type[ActionEngine]
_ENGINES: tuple[tuple[type, _Engine], ...] = ((LanguagePolicy, BuiltinEngine), (ActorCriticPolicy, ActionEngine))


class LocalEngine(InferenceEngine):
    """An `InferenceEngine` that serves a language policy by a `BuiltinEngine`, and a policy that acts on observations
    by an `ActionEngine`: the first policy decides, later ones must be of its kind. `seed` is of what is drawn.
    Completing raises ServiceError before there is a policy."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._engine: BuiltinEngine | ActionEngine | None = None

    @property
    def version(self) -> int:
        """The version of the policy that is served now; -1 before there is one."""
        return -1 if self._engine is None else self._engine.version

    def update(self, policy: LanguagePolicy | ActorCriticPolicy, version: int) -> None:
        """Serve a copy of a policy from now on. Where an error is raised, what was served before goes on being served.

        Raises:
            ConfigError: for what is no policy an engine serves, one of another kind than the first, a version below 0,
                or other weights as the version that is served.
            ArtifactError: when a weight is not finite.
        """
        kind = next((kind for policies, kind in _ENGINES if isinstance(policy, policies)), None)
        if kind is None:
            raise ConfigError(
                f"an engine serves a LanguagePolicy, or the policy of a PPOTrainer; found {type(policy).__name__}"
            )
        self._engine = self._engine or kind(seed=self._seed)
        if not isinstance(self._engine, kind):
            raise ConfigError(
                f"a {type(policy).__name__} came to an engine of other policies; serve it by one of its own"
            )
        self._engine.update(policy, version)  # type: ignore[arg-type]  # it is of the engine's kind

    def complete(self, prompts: Sequence[Prompt], *, n: int = 1, sampling: Sampling | None = None) -> list[Completions]:
        """`n` completions of each prompt, in the order of the prompts; waits until all are done. `sampling` None is
        `Sampling()`.

        Raises:
            ServiceError: before there is a policy, when decoding fails, and when the engine is or gets closed.
            ConfigError: for a prompt the policy cannot take, or where the policy answers observations, not texts.
        """
        return self._texts().complete(prompts, n=n, sampling=sampling)

    def generate_rollouts(  # type: ignore[override]  # observations are answered by actions
        self, environment_states: Sequence[Any], *, n: int = 1, sampling: Sampling | None = None
    ) -> Sequence[Any]:
        """`n` messages for each state of LoomRL Gym or text, or `n` actions (`ActionRollout`) for each observation, in
        the order of the states. Of `sampling` actions have the temperature (1 draws, 0 takes the likeliest) and the
        seed.

        Raises:
            ServiceError: before there is a policy, when decoding fails, and when the engine is or gets closed.
            ConfigError: for a text or observation the policy cannot take, or, of actions, another temperature.
        """
        if isinstance(self._engine, ActionEngine):
            sampling = sampling or Sampling()
            actions: list[ActionRollout] = self._engine.rollouts(
                environment_states, n, sampling.temperature, sampling.seed
            )
            return actions
        return self._texts().generate_rollouts(environment_states, n=n, sampling=sampling)

    def pause(self, mode: PauseMode = "wait") -> None:
        """Begin no completion until `resume`, see `InferenceEngine.pause`; without effect on actions, which are chosen
        within the call, and before there is a policy. Never fails."""
        if isinstance(self._engine, BuiltinEngine):
            self._engine.pause(mode)

    def resume(self) -> None:
        """Begin waiting completions and continue kept ones, after `pause`; without effect on actions. Never fails."""
        if isinstance(self._engine, BuiltinEngine):
            self._engine.resume()

    def close(self) -> None:
        """End the decoding thread, where there is one. Completions that are unanswered, and later ones, fail with
        ServiceError."""
        if isinstance(self._engine, BuiltinEngine):
            self._engine.close()

    def _texts(self) -> BuiltinEngine:
        if self._engine is None:
            raise ServiceError("the engine has no policy; load one with load_policy or update")
        if isinstance(self._engine, ActionEngine):
            raise ConfigError("the policy that is served answers observations, not texts; call generate_rollouts")
        return self._engine
