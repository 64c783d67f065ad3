"""A language policy as the stages know policies: the bytes of a text in, the bytes of the greedy answer out.

The whole decoding is one `forward`, unrolled over the answer's few bytes, so that the exported graph is all that a
server needs: it reads the prompt once, and each byte after it looks back through keys and values that are kept.
"""

from typing import Any, Self

import gymnasium
import torch
from torch import Tensor

from loomrl.algorithms.policies.policy import PolicyArchitecture, TrainedPolicy
from loomrl.environment.text import TextBox
from loomrl.errors import ConfigError
from loomrl.language.policies.tokens import BOS, EOS, PAD, ByteTokenizer
from loomrl.language.policies.transformer import Transformer, TransformerConfig

MOST_ANSWER_BYTES = 64  # each is a copy of the layers in the graph
_FIRST_BYTE = ByteTokenizer().encode("\0")[0]  # the token of byte 0; those of the others follow


class TextPolicy(TrainedPolicy):
    """A language policy of bytes, as stages know policies: answers with the likeliest byte after those before it, until
    the end or the room for an answer is reached.

    Texts are uint8 arrays, observations (P,) and actions (A,), zeros after their end. Begin and padding are never
    chosen, and byte 0 ends an answer as the token for its end does. `value` is the probability the policy gives the
    answer, `logits` (B, A, 2) hold for each byte its own and the next largest one, zeros after the end.
    """

    output_names = ("action", "value", "logits")
    action_kind = "text"
    network_keys = frozenset(TransformerConfig.model_fields)

    def __init__(self, architecture: PolicyArchitecture, generator: torch.Generator | None = None) -> None:
        super().__init__(architecture)
        _, self.answer_bytes = _require_texts(self.observation_space, self.action_space)
        config = TransformerConfig.model_validate(architecture.network)
        self.model = Transformer(config, generator or torch.Generator())

    @classmethod
    def for_spaces(  # type: ignore[override]
        cls,
        algorithm: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        generator: torch.Generator,
        **transformer: int | bool,
    ) -> Self:
        """A fresh policy of bytes, with room for the longest prompt and answer. `transformer` are the fields of
        `TransformerConfig` but for vocabulary size and `max_tokens`.

        Raises:
            ConfigError: for spaces that are no texts, or answers of more than 64 bytes.
            ValidationError: for a value that `TransformerConfig` does not allow.
        """
        longest = sum(_require_texts(observation_space, action_space)) + 2  # begin and end
        sizes = {"vocabulary_size": ByteTokenizer().vocabulary_size, "max_tokens": longest}
        config = TransformerConfig.model_validate({**transformer, **sizes})
        network = config.model_dump(mode="json")
        return super().for_spaces(algorithm, observation_space, action_space, (), "gelu", False, generator, **network)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Texts (B, P) -> greedy `action` (B, A), its probability `value` (B,), and `logits` (B, A, 2)."""
        tokens, valid = _right_aligned(obs)
        memory = _Kept()
        goes_on = torch.ones_like(valid[:, 0])  # (B,)
        log_prob = torch.zeros_like(goes_on, dtype=torch.float32)
        letters, largest = [], []
        for _ in range(self.answer_bytes):
            hidden = self.model(tokens, valid, memory)[:, -1]
            logits = self.model.logits(hidden)[:, EOS:]  # (B, 257): the end, then bytes
            two = logits.topk(2, -1)
            chosen = two.indices[:, 0]
            own = two.values[:, 0] - logits.logsumexp(-1)
            log_prob = log_prob + torch.where(goes_on, own, 0.0)
            largest.append(torch.where(goes_on[:, None], two.values, 0.0))
            goes_on = goes_on & (chosen > _FIRST_BYTE - EOS)
            letters.append(torch.where(goes_on, chosen - (_FIRST_BYTE - EOS), 0))
            tokens = (chosen + EOS)[:, None]
            valid = torch.cat([valid, torch.ones_like(valid[:, :1])], 1)
        return {
            "action": torch.stack(letters, 1).to(torch.uint8),
            "value": log_prob.exp(),
            "logits": torch.stack(largest, 1),
        }


class _Kept:
    """A `Memory` without writing in place, which a graph can do: what was read, and what is read now behind it."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self._layers:
            before = self._layers[layer]
            keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
        self._layers[layer] = keys, values
        return keys, values


def _right_aligned(texts: Tensor) -> tuple[Tensor, Tensor]:
    """Texts (B, P) -> tokens (B, 1 + P), begin and then the text at the right end, and which of them are no padding."""
    ended = (texts == 0).to(torch.int64).cumsum(1) > 0
    length = (~ended).sum(1, keepdim=True)  # (B, 1)
    size = texts.shape[1]
    place = torch.arange(1 + size, device=texts.device) - (size - length)  # 0 is begin's
    letters = texts.to(torch.int64).gather(1, (place - 1).clamp(min=0, max=size - 1)) + _FIRST_BYTE
    tokens = torch.where(place == 0, BOS, torch.where(place > 0, letters, PAD))
    return tokens, place >= 0


def _require_texts(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> tuple[int, int]:
    """How many bytes a prompt and an answer have at most."""
    for name, space in (("observation", observation), ("action", action)):
        if not isinstance(space, TextBox):
            raise ConfigError(
                f"{name} space {space} is not supported by language policies, which read and write texts; take an "
                "environment of LoomRL Gym with environment.kwargs.mode: text, or another algorithm"
            )
    assert isinstance(observation, TextBox)
    assert isinstance(action, TextBox)
    if action.size > MOST_ANSWER_BYTES:
        raise ConfigError(
            f"answers of up to {action.size} bytes are longer than a graph has room for ({MOST_ANSWER_BYTES}); set "
            "environment.kwargs.answer_bytes to what a right answer takes"
        )
    return observation.size, action.size
