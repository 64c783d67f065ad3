"""An inference engine answers what environments ask, by the policy that a trainer is learning."""

import asyncio

from loomrl import BuiltinEngine, EnvironmentType, LoomRLGym
from loomrl.gym.curriculum import Curriculum, CurriculumConfig
from loomrl.gym.stream import TaskStream
from loomrl.language.inference.source import EngineSource
from loomrl.language.learning.ppo import LanguagePPO, LanguagePPOConfig
from loomrl.language.learning.trainer import LanguageTrainer
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig


async def main() -> None:
    ppo_trainer = LanguagePPO(LanguagePPOConfig(), LanguagePolicy.fresh(seed=0, value_head=True))
    async with LoomRLGym(seed=0) as gym:
        environments = [await gym.create_environment(EnvironmentType.MATH, {"kinds": ["addition"]}) for _ in range(3)]
        environment_states = [await environment.reset() for environment in environments]
        with BuiltinEngine() as inference_engine:
            inference_engine.load_policy(ppo_trainer.policy)
            rollouts = inference_engine.generate_rollouts(environment_states)
            for environment, rollout in zip(environments, rollouts, strict=True):
                _, reward, _, _ = await environment.step(rollout.text)
                print(
                    f"{environment.name}: {rollout.state.text}{rollout.text!r} by version {rollout.version}: {reward}"
                )

            tasks = TaskStream(Curriculum(CurriculumConfig(), ["math"]), seed=0, kinds={"math": ["addition"]})
            drawn = SamplingConfig(max_tokens=4)
            source = EngineSource(inference_engine, tasks, num_prompts=4, num_samples=8, sampling=drawn, seed=0)
            for metrics in LanguageTrainer(ppo_trainer, source).run(2):  # weights go to the engine before each
                print(metrics)
            print("the engine serves version", inference_engine.version)


asyncio.run(main())
