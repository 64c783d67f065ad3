"""One step in a math environment: choose the first of the answers that are offered."""

import asyncio

from loomrl import EnvironmentType, LoomRLGym


async def main() -> None:
    gym = LoomRLGym()
    math_env = await gym.create_environment(EnvironmentType.MATH, {"difficulty": "intermediate", "max_steps": 50})
    state = await math_env.reset()
    print(state.text)
    print(state.choices)
    action = 0
    next_state, reward, done, info = await math_env.step(action)
    print(reward, done, info)
    await gym.close()


asyncio.run(main())
