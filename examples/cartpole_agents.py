"""Agents that balance a CartPole each and ask a policy server for every step; docs/serving.md has them play.

`python examples/cartpole_agents.py http://127.0.0.1:8100 --episodes 2` has eight agents play two episodes each.
"""

import argparse
from dataclasses import dataclass
from uuid import uuid4

import gymnasium

from loomrl import PolicyClient
from loomrl.serving.client import Ask, Outcome


@dataclass
class Agent:
    """One cart and the episode it is in."""

    name: str
    env: gymnasium.Env
    sensor_offset: float  # that a broken sensor adds to the cart's position

    def begin(self, seed: int) -> None:
        """Begin another episode."""
        self.episode_id = uuid4().hex
        self.observation, _ = self.env.reset(seed=seed)
        self.episode_return, self.ended = 0.0, False

    def ask(self) -> Ask:
        """What the server is asked."""
        x, *others = self.observation.tolist()
        return Ask(self.name, [x + self.sensor_offset, *others], self.episode_id)

    def act(self, decision_id: str, action: int) -> Outcome:
        """Do what was decided; returns what came of it."""
        self.observation, reward, terminated, truncated, _ = self.env.step(action)
        self.episode_return += float(reward)
        self.ended = terminated or truncated
        return Outcome(decision_id, float(reward), terminated, truncated)


def play(client: PolicyClient, agents: list[Agent]) -> None:
    """Let all agents play until the last one's episode ends; each step is one request for all who still play."""
    versions: dict[str, set[str]] = {agent.name: set() for agent in agents}
    while playing := [agent for agent in agents if not agent.ended]:
        decisions = client.decide_many([agent.ask() for agent in playing])
        for agent, decision in zip(playing, decisions, strict=True):
            versions[agent.name].add(decision.version)
        client.feedback_many(
            [agent.act(one.decision_id, one.action) for agent, one in zip(playing, decisions, strict=True)]
        )
    for agent in agents:
        print(f"{agent.name}  return {agent.episode_return:g}  decided by version {', '.join(versions[agent.name])}")


def main() -> None:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the policy server")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=1, help="of each agent")
    parser.add_argument("--steps", type=int, default=500, help="an episode ends after so many")
    parser.add_argument("--sensor-offset", type=float, default=0.0, help="what a broken sensor adds to the position")
    given = parser.parse_args()
    envs = [gymnasium.make("CartPole-v1", max_episode_steps=given.steps) for _ in range(given.agents)]
    agents = [Agent(f"cart-{number}", env, given.sensor_offset) for number, env in enumerate(envs)]
    with PolicyClient(given.url) as client:
        for episode in range(given.episodes):
            for number, agent in enumerate(agents):
                agent.begin(seed=episode * len(agents) + number)
            play(client, agents)


if __name__ == "__main__":
    main()
