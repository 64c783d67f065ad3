"""Some of the texts a policy answered, for people to read."""

from collections.abc import Sequence
from typing import Any

from gymnasium import Space

from loomrl.environment.text import TextBox, decode_text
from loomrl.types import Episode, TextSample

FIRST, WORST = 12, 12


def text_samples(
    episodes: Sequence[Episode], observation_space: Space[Any], action_space: Space[Any]
) -> list[TextSample]:
    """The first episodes, then the worst of the others, each by its first text and its last answer; none where
    observations or actions are no texts."""
    if not isinstance(observation_space, TextBox) or not isinstance(action_space, TextBox):
        return []
    worst = sorted(episodes[FIRST:], key=lambda episode: (episode.episode_return, episode.seed))[:WORST]
    return [
        TextSample(
            seed=episode.seed,
            prompt=decode_text(episode.obs[0]),
            answer=decode_text(episode.action[-1]),
            episode_return=episode.episode_return,
        )
        for episode in [*episodes[:FIRST], *worst]
    ]
