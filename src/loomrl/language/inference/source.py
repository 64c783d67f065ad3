"""Groups to learn from, answered by an inference engine: the trainer's weights go to it before it is asked."""

import torch

from loomrl.gym.stream import TaskStream
from loomrl.language.inference.engine import InferenceEngine, Sampling
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.sources import TaskSource
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig as Drawing


class EngineSource(TaskSource):
    """A `TaskSource` whose answers come from an inference engine; the engine gets the trainer's policy before each
    collection. `collect` raises ServiceError when the engine cannot be reached or fails.

    Groups carry the version that the engine reports. An answer that a pause cut short gives no group.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        tasks: TaskStream,
        *,
        num_prompts: int,
        num_samples: int,
        sampling: Drawing,
        seed: int,
    ) -> None:
        super().__init__(tasks, num_prompts=num_prompts, num_samples=num_samples, sampling=sampling, seed=seed)
        self._engine = engine
        self._handed_version: int | None = None  # an engine may have other weights by the same number

    def collect(self, policy: LanguagePolicy, version: int) -> list[TokenGroup]:
        """Groups for the next update, one for each task drawn, in their order, but for those whose answers were cut
        short. The engine is given `policy` as this version first, where it does not have it.

        Raises:
            ServiceError: when the engine cannot be reached, fails, or does not take the weights.
            ConfigError: for a task that the tokenizer or the engine's policy cannot take.
            ArtifactError: when a weight is not finite, or weights cannot be written.
        """
        if self._handed_version != version or self._engine.version != version:
            self._engine.update(policy, version)
            self._handed_version = version
        drawn = self._drawn()
        seed = int(torch.randint(2**62, (), generator=self._generator))
        answers = self._engine.complete(
            [policy.tokenizer.prompt(task.prompt) for task in drawn],
            n=self._num_samples,
            sampling=Sampling(**{**self._sampling.model_dump(), "seed": seed}),
        )
        return [
            self._scored(task, answer.prompt_token_ids, ones, [one.text for one in ones], ones[0].version)
            for task, answer in zip(drawn, answers, strict=True)
            for ones in [answer.completions]
            if all(one.finish_reason != "abort" for one in ones)
        ]
