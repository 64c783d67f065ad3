"""PPO with a small network, no language model, learns tic-tac-toe puzzles in the mode in which moves are chosen."""

import asyncio

import gymnasium

from loomrl import PPOConfig, PPOTrainer

gymnasium.register(
    id="TicTacToePuzzles-v0",
    entry_point="loomrl.gym.domains.game:Environment",
    kwargs={"mode": "choice", "kinds": ["tic_tac_toe_puzzle"]},
)


async def main() -> None:
    config = PPOConfig(environment="TicTacToePuzzles-v0", learning_rate=1e-3, num_envs=16, entropy_coef=0.01)
    result = await PPOTrainer(config).train(total_timesteps=16_000)
    for row in (result.updates[0], result.updates[-1]):
        print(f"{row['episode_return']:.2f} of the puzzles solved after {row['step']} of them")


asyncio.run(main())
