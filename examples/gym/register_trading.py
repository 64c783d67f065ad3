"""Register an environment of one's own with its version; the same content again is welcome, other content refused."""

from pathlib import Path

from loomrl import register_environment

record = register_environment(
    name="CustomTradingEnv",
    entry_point="trading_envs:TradingEnvironment",
    version="1.2.0",
    max_episode_steps=1000,
    reward_threshold=500.0,
    path=Path(__file__).parent,
)
print(record.name, record.version, record.source_digest)
