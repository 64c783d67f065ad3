"""One interface to all inference engines, whether in this process or behind HTTP.

Every completion says which version of the policy made it, from its first token to its last: an engine that takes new
weights finishes what it began by the old ones, or drops it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

from pydantic import Field

from loomrl.language.inference.rollouts import EnvironmentState, Rollout, rollouts_of
from loomrl.language.policies.sampling import SamplingConfig as Drawing
from loomrl.language.policies.sampling import TokenCompletion as Drawn

Prompt = str | Sequence[int]  # a text, or the token ids of one
PauseMode = Literal["abort", "wait", "keep"]


class Sampling(Drawing):
    """A policy's sampling settings, stop texts and a seed. A completion ends where its text reaches one of `stop`,
    which is cut off. The same `seed` gives the same tokens again, whatever else is asked meanwhile; without one the
    engine draws by its own."""

    stop: tuple[str, ...] = ()
    seed: int | None = Field(default=None, ge=0, lt=2**63)


@dataclass(frozen=True)
class Completion(Drawn):
    """One completion of a prompt: a `TokenCompletion` with its text, and the version of the policy that made all of it.
    `stopped_by` is the stop text, which is not in `text`, or the stop token; None where neither ended it."""

    text: str
    version: int
    stopped_by: str | int | None = None


@dataclass(frozen=True)
class Completions:
    """A prompt's tokens and its `n` completions."""

    prompt_token_ids: list[int]
    completions: list[Completion]


class InferenceEngine(ABC):
    """Completes prompts by a policy. Methods may be called from several threads at once. Every method raises
    ServiceError when the engine has no policy, cannot be reached or fails, and ConfigError (an engine behind HTTP:
    ServiceError, too) for a prompt or sampling the policy cannot take.

    `InferenceEngine()` itself makes one in this process, for whatever policy it is given
    (`loomrl.language.inference.local`).
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        if cls is not InferenceEngine:
            return super().__new__(cls)
        from loomrl.language.inference.local import LocalEngine

        return cast(Self, super().__new__(LocalEngine))

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the policy that is served now; -1 before there is one."""

    @abstractmethod
    def complete(self, prompts: Sequence[Prompt], *, n: int = 1, sampling: Sampling | None = None) -> list[Completions]:
        """`n` completions of each prompt, in the order of the prompts; waits until all are done. `sampling` None is
        `Sampling()`.

        Raises:
            ServiceError: when the engine has no policy, cannot be reached or fails, also in the midst of it.
            ConfigError: for a prompt that the policy cannot take, such as one that is empty or too long, or a wrong
                `n`. An engine behind HTTP raises ServiceError in its place.
        """

    @abstractmethod
    def update(self, policy: Any, version: int) -> None:
        """Serve a policy's weights as this version, a number from 0 on, from now on.

        Raises:
            ServiceError: when an engine behind HTTP refuses them or serves another version afterwards. What it served
                before goes on being served; where that cannot be known, it is left paused and the message says so.
            ConfigError: when an engine in this process is given a policy of another kind than the one it serves, or
                other weights as the version it serves.
            ArtifactError: when a weight is not finite, or weights cannot be written for an engine to read.
        """

    @abstractmethod
    def pause(self, mode: PauseMode = "wait") -> None:
        """Begin nothing new until `resume`. What runs is ended unfinished ("abort"), waited for ("wait"), or kept for
        later ("keep").

        Raises:
            ServiceError: when the engine cannot be reached; whether it paused is not known then.
        """

    @abstractmethod
    def resume(self) -> None:
        """Begin waiting completions and continue kept ones, after `pause`.

        Raises:
            ServiceError: when the engine cannot be reached; whether it goes on is not known then.
        """

    @abstractmethod
    def close(self) -> None:
        """Release threads and connections. In this process what is unanswered fails with ServiceError; requests to an
        engine behind HTTP are waited for."""

    def load_policy(self, policy: Any) -> int:
        """Serve a policy as the next version; returns that version number, in this process 0 for the first. Raises as
        `update` does."""
        version = self.version + 1
        self.update(policy, version)
        return version

    def generate_rollouts(
        self, environment_states: Sequence[EnvironmentState], *, n: int = 1, sampling: Sampling | None = None
    ) -> list[Rollout]:
        """`n` messages for each state of an environment of LoomRL Gym, or each text: `n` rollouts of the first state,
        then `n` of the next. `sampling` None is `Sampling()`.

        Raises:
            ServiceError: when the engine has no policy, cannot be reached or fails.
            ConfigError: for a text that the policy cannot take, such as one that is too long; of an engine behind HTTP
                ServiceError.
        """
        sampling = sampling or Sampling()
        prompts = [state if isinstance(state, str) else state.text for state in environment_states]
        answers = self.complete(prompts, n=n, sampling=sampling)
        return rollouts_of(environment_states, answers, sampling.temperature)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
