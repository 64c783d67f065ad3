"""A small decoder-only transformer (Vaswani et al., arXiv 1706.03762), normalised before each block (arXiv 2002.04745).

Positions are learnt; the output shares the embedding of tokens. Shapes: B sequences, T new tokens, S tokens so far.
"""

import math

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from loomrl.language.policies.cache import TokenMemory
from loomrl.language.policies.model import LanguageModel, MemoryShape, ModelConfig, allowed, positions_of


class TransformerConfig(ModelConfig):
    """The settings a transformer is built from; with the byte tokenizer the defaults make 123,000 parameters. `width`,
    the size of a hidden state, is a multiple of `num_heads`."""

    vocabulary_size: int = Field(default=259, ge=4)
    width: int = Field(default=64, ge=1)
    num_layers: int = Field(default=2, ge=1)
    num_heads: int = Field(default=4, ge=1)
    max_tokens: int = Field(default=128, ge=2)

    @model_validator(mode="after")
    def _is_possible(self) -> "TransformerConfig":
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is no multiple of num_heads {self.num_heads}")
        return self


class Attention(nn.Module):
    """Causal self-attention of several heads, the config's `num_heads`; no biases."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.inputs = nn.Linear(config.width, 3 * config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, hidden: Tensor, allowed: Tensor, memory: TokenMemory, layer: int) -> Tensor:
        """(B, T, width) -> (B, T, width). `allowed`, bool (B, 1, T, S), says which tokens each may look at; keys and
        values of this `layer` are stored in `memory`."""
        split = self.inputs(hidden).unflatten(2, (3, self.num_heads, -1))  # (B, T, 3, H, D)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        key, value = memory.extend(layer, key, value)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        output: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """A layer of the transformer: attention, then two dense layers, each added to what came in."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.dense_norm = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, 4 * config.width, bias=False)
        self.contract = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, hidden: Tensor, allowed: Tensor, memory: TokenMemory, layer: int) -> Tensor:
        """(B, T, width) -> (B, T, width), with the tokens in `memory` as context. `allowed`, bool (B, 1, T, S), says
        which tokens each may look at; `layer` is the block's number from 0."""
        hidden = hidden + self.attention(self.attention_norm(hidden), allowed, memory, layer)
        dense: Tensor = self.contract(functional.gelu(self.expand(self.dense_norm(hidden)), approximate="tanh"))
        return hidden + dense


class Transformer(LanguageModel):
    """A `LanguageModel` with weights drawn from `generator`."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=()):  # constructors draw weights of their own from the global generator
            self.token_embedding = nn.Embedding(config.vocabulary_size, config.width)
            self.position_embedding = nn.Embedding(config.max_tokens, config.width)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
            self.norm = nn.LayerNorm(config.width)
            self.value_head = nn.Linear(config.width, 1) if config.value_head else None
        self._initialize(generator)

    @torch.no_grad()
    def _initialize(self, generator: torch.Generator) -> None:
        """Weights that keep the size of what passes through them, the smaller the more blocks add up (Radford et al.
        2019, section 2.3); values begin at 0. Smaller embeddings are drowned by the blocks and learn late."""
        deviation = 1.0 / math.sqrt(self.config.width)
        for name, parameter in self.named_parameters():
            if name.startswith("value_head"):
                parameter.zero_()
            elif name.endswith(("output.weight", "contract.weight")):
                residual = deviation / math.sqrt(2 * self.config.num_layers)
                parameter.normal_(std=residual, generator=generator)
            elif parameter.dim() == 2:
                parameter.normal_(std=deviation, generator=generator)

    def forward(self, tokens: Tensor, valid: Tensor, memory: TokenMemory) -> Tensor:
        """Read T more tokens (B, T) of each sequence; returns normalised hidden states (B, T, width), see
        `LanguageModel.forward`. Raises IndexError for a sequence of more than `max_tokens`."""
        num_new = tokens.shape[1]
        hidden = self.token_embedding(tokens) + self.position_embedding(positions_of(valid, num_new))
        mask = allowed(valid, num_new)
        for layer, block in enumerate(self.blocks):
            hidden = block(hidden, mask, memory, layer)
        normalized: Tensor = self.norm(hidden)
        return normalized

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., width) -> logits of the token that follows, (..., vocabulary_size)."""
        return functional.linear(hidden, self.token_embedding.weight)

    @property
    def memory_shape(self) -> MemoryShape:
        """How many layers, heads and numbers per head the transformer keeps of each token."""
        config = self.config
        return MemoryShape(config.num_layers, config.num_heads, config.width // config.num_heads)
