"""A task of each domain, answered by choosing and, once more, in words."""

import asyncio

from loomrl import EnvironmentType, LoomRLGym


async def main() -> None:
    async with LoomRLGym(seed=1) as gym:
        for environment_type in EnvironmentType:
            environment = await gym.create_environment(environment_type, {"difficulty": "beginner"})
            await environment.reset()
            done, earned = False, 0.0
            while not done:
                _, reward, done, info = await environment.step(0)
                earned += reward
            state = await environment.reset()
            _, in_words, _, _ = await environment.step("I do not know.")
            print(
                f"{environment.name}: {state.kind}, {earned:.2f} by choosing, {in_words:.2f} in words", info["rewards"]
            )


asyncio.run(main())
