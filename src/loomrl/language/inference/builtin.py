"""The engine that comes with LoomRL: small transformers, decoded in this process, all requests together."""

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from loomrl.errors import ConfigError, ServiceError
from loomrl.language.inference.decoding import DecodedAnswer
from loomrl.language.inference.engine import Completion, Completions, InferenceEngine, PauseMode, Prompt, Sampling
from loomrl.language.inference.scheduler import CompletionJob, Scheduler
from loomrl.language.inference.weights import is_same
from loomrl.language.policies.policy import LanguagePolicy

MAX_COMPLETIONS = 1_024  # of one prompt


class BuiltinEngine(InferenceEngine):
    """An `InferenceEngine` that decodes in a thread of this process; calls from several threads are decoded together.
    Completing raises ServiceError without a policy and once the engine is closed.

    A completion with a seed is the same whatever is decoded beside it. Each version is a copy: whoever learns may go on
    changing the policy that was handed over.

    Args:
        policy: what to serve first, as version 0.
        max_running: sequences decoded at once.
        max_waiting: completions that wait for their turn; more are refused.
        seed: of completions that have no seed of their own.
        observe: told of each completion.

    Raises:
        ArtifactError: when a weight of `policy` is not finite.
    """

    def __init__(
        self,
        policy: LanguagePolicy | None = None,
        *,
        max_running: int = 64,
        max_waiting: int = 16_384,
        seed: int = 0,
        observe: Callable[[Completion], None] = lambda _completion: None,
    ) -> None:
        self.scheduler = Scheduler(max_running, max_waiting, observe)  # decodes this engine's requests
        self._max_waiting, self._one_update = max_waiting, threading.Lock()
        self._rng = np.random.default_rng(seed)
        if policy is not None:
            self.load_policy(policy)

    @property
    def is_alive(self) -> bool:
        """Whether the decoding thread runs; after it has ended every request fails."""
        return self.scheduler.is_alive

    @property
    def version(self) -> int:
        """The version of the policy that is served now; -1 before there is one."""
        served = self.scheduler.served
        return -1 if served is None else served[1]

    @property
    def policy(self) -> LanguagePolicy:
        """The copy of a policy that is served now; not to be changed.

        Raises:
            ServiceError: before there is one.
        """
        if (served := self.scheduler.served) is None:
            raise ServiceError("the engine has no policy; load one with load_policy or update")
        return served[0]

    def complete(self, prompts: Sequence[Prompt], *, n: int = 1, sampling: Sampling | None = None) -> list[Completions]:
        """`n` completions of each prompt, in the order of the prompts; waits until all are done. `sampling` None is
        `Sampling()`.

        Raises:
            ConfigError: for a prompt the policy cannot take, `n` above 1,024 or below 1, or more completions than may
                wait.
            Busy: when too many completions wait; try again.
            ServiceError: without a policy, when decoding fails, and when the engine is or gets closed.
        """
        return [future.result() for future in self.submit(prompts, n=n, sampling=sampling)]

    def submit(
        self, prompts: Sequence[Prompt], *, n: int = 1, sampling: Sampling | None = None
    ) -> "list[Future[Completions]]":
        """Futures of the completions of each prompt, as `complete` returns them; a cancelled future is not decoded any
        further.

        Raises:
            ConfigError: for a prompt the policy cannot take, `n` above 1,024 or below 1, or more completions than may
                wait.
            Busy: when too many completions wait; try again.
            ServiceError: without a policy, or after `close`. What goes wrong later is raised by the future.
        """
        if not 1 <= n <= MAX_COMPLETIONS:
            raise ConfigError(f"n is {n}; from 1 to {MAX_COMPLETIONS} completions of a prompt")
        if len(prompts) * n > self._max_waiting:
            raise ConfigError(
                f"{len(prompts) * n} completions at once; at most {self._max_waiting} may wait, ask in parts"
            )
        policy, sampling = self.policy, sampling or Sampling()
        jobs = [self._job(policy, prompt, number, n, sampling) for number, prompt in enumerate(prompts)]
        self.scheduler.submit(jobs)
        return [job.future for job in jobs]

    def update(self, policy: LanguagePolicy, version: int) -> None:
        """Serve a copy of a policy; what runs is finished by the version that began it. Where an error is raised, what
        was served before goes on being served.

        Raises:
            ConfigError: when it has another tokenizer or architecture, other weights are served as this version, or the
                version is below 0.
            ArtifactError: when a weight is not finite.
        """
        with self._one_update:
            served = self.scheduler.served
            if served is not None:
                _check_same_kind(served[0], policy)
            now = None if served is None else (served[0].model.state_dict(), served[1])
            if not is_same(version, policy.model.state_dict(), now):
                model = copy.deepcopy(policy.model).requires_grad_(False).eval()
                self.scheduler.serve(policy.with_model(model), version)

    def pause(self, mode: PauseMode = "wait") -> None:
        """Begin no new completion until `resume`. What runs is ended unfinished, with what waits ("abort"), waited for
        ("wait"), or kept for later ("keep"). Never fails."""
        self.scheduler.pause(mode)

    def resume(self) -> None:
        """Begin waiting completions and continue kept ones, after `pause`. Never fails."""
        self.scheduler.resume()

    def close(self) -> None:
        """End the decoding thread. What is unanswered, and every later request, fails with ServiceError."""
        self.scheduler.close()

    def _job(self, policy: LanguagePolicy, prompt: Prompt, number: int, n: int, sampling: Sampling) -> CompletionJob:
        token_ids = tuple(policy.tokenizer.prompt(prompt) if isinstance(prompt, str) else prompt)
        room = _check_prompt(token_ids, policy)
        seeds = [[sampling.seed, number, index] for index in range(n)] if sampling.seed is not None else [None] * n
        return CompletionJob(
            [DecodedAnswer(token_ids, sampling, self._rng_of(seed), min(sampling.max_tokens, room)) for seed in seeds]
        )

    def _rng_of(self, seed: list[int] | None) -> np.random.Generator:
        return np.random.default_rng(int(self._rng.integers(2**63)) if seed is None else seed)


def _check_prompt(token_ids: Sequence[int], policy: LanguagePolicy) -> int:
    """How many tokens there is room for behind a prompt.

    Raises:
        ConfigError: for one that is empty, too long, or holds what is no token.
    """
    config = policy.model.config
    if not token_ids:
        raise ConfigError("a prompt is empty; send at least one token")
    if wrong := [token_id for token_id in token_ids if not 0 <= token_id < config.vocabulary_size]:
        raise ConfigError(f"{wrong[0]} is no token; the policy has {config.vocabulary_size}, from 0 on")
    if (room := config.max_tokens - len(token_ids)) < 1:
        raise ConfigError(
            f"a prompt of {len(token_ids)} tokens leaves no room for an answer: the policy reads {config.max_tokens}"
        )
    return room


def _check_same_kind(served: LanguagePolicy, policy: LanguagePolicy) -> None:
    """Prompts that wait were made for the policy that is served."""
    if served.tokenizer.to_json() != policy.tokenizer.to_json():
        raise ConfigError("the new policy has another tokenizer; serve it by an engine of its own")
    if served.model.config != policy.model.config:
        raise ConfigError(
            f"the new policy is another model ({policy.model.config}) than the one served "
            f"({served.model.config}); serve it by an engine of its own"
        )
