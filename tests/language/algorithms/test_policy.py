"""The policy of texts against the generation it comes from, and the graph that ships against both."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from loomrl.algorithms.policies.onnx_graph import INPUT, build_graph
from loomrl.environment.text import TextBox, decode_text, encode_text, ends_once
from loomrl.errors import ConfigError
from loomrl.language.algorithms.policy import MOST_ANSWER_BYTES, TextPolicy
from loomrl.language.learning.batch import TokenBatch, answer_states, token_log_probs
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.policies.generation import generate
from loomrl.language.policies.sampling import SamplingConfig
from loomrl.language.policies.tokens import EOS, ByteTokenizer
from loomrl.serving.policy.model import open_session

PROMPT_BYTES, ANSWER_BYTES = 8, 4
PROMPTS = ["", "1", "12+34=", "abcdefgh", "ä!"]
TOKENIZER = ByteTokenizer()
(BYTE_ZERO,) = TOKENIZER.encode("\0")


@pytest.fixture(scope="module")
def policy() -> TextPolicy:
    """Random weights large enough that answers differ, and end at different places."""
    made = fresh()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        made.model.token_embedding.weight[:EOS] = 0.0  # begin and padding, which this policy never says,
        made.model.token_embedding.weight[BYTE_ZERO] = 0.0  # nor byte 0
        made.model.token_embedding.weight[EOS] *= 2.0
    return made


def fresh(**transformer: int) -> TextPolicy:
    spaces = TextBox(PROMPT_BYTES), TextBox(ANSWER_BYTES)
    return TextPolicy.for_spaces(
        "grpo", *spaces, generator=torch.Generator().manual_seed(3), **({"width": 16, "num_layers": 2} | transformer)
    )


def observations() -> np.ndarray:
    rng = np.random.default_rng(1)
    drawn = ["".join(chr(letter) for letter in rng.integers(33, 126, size=rng.integers(9))) for _ in range(60)]
    return np.stack([encode_text(text, PROMPT_BYTES) for text in [*PROMPTS, *drawn]])


def test_it_says_what_greedy_generation_says(policy: TextPolicy) -> None:
    obs = observations()
    greedy = SamplingConfig(temperature=0.0, max_tokens=ANSWER_BYTES)
    prompts = [TOKENIZER.prompt(decode_text(row)) for row in obs]
    said = [one[0] for one in generate(policy.model, prompts, 1, greedy, torch.Generator())]
    actions, ended = policy(obs), 0
    for action, completion in zip(actions, said, strict=True):
        letters = completion.token_ids[:-1] if completion.finish_reason == "stop" else completion.token_ids
        assert action.tolist() == [token - BYTE_ZERO for token in letters] + [0] * (ANSWER_BYTES - len(letters))
        ended += completion.finish_reason == "stop"
    assert 0 < ended < len(obs)
    assert ends_once(actions).all()
    assert all(policy.action_space.contains(action) for action in actions)


def test_its_value_is_the_probability_of_its_answer(policy: TextPolicy) -> None:
    obs = observations()
    values = policy.act(obs, np.random.default_rng(0)).value
    assert values is not None
    for row, action, value in zip(obs[:8], policy(obs[:8]), values[:8], strict=True):
        prompt, letters = TOKENIZER.prompt(decode_text(row)), [BYTE_ZERO + int(byte) for byte in action if byte]
        answer = letters + [EOS] * (len(letters) < ANSWER_BYTES)
        group = TokenGroup([prompt + answer], [[False] * len(prompt) + [True] * len(answer)], [0.0])
        batch = TokenBatch.of_groups([group])
        with torch.no_grad():
            log_probs = token_log_probs(policy.model, batch, answer_states(policy.model, batch))
            specials = _share_of_specials(policy, prompt, answer)
        expected = float((log_probs.sum() - specials).exp())  # begin and padding are never chosen
        assert value == pytest.approx(expected, rel=1e-4)


def _share_of_specials(policy: TextPolicy, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """log of the probability that neither begin nor padding is said, summed over an answer's tokens."""
    group = TokenGroup([prompt + answer], [[False] * len(prompt) + [True] * len(answer)], [0.0])
    states = answer_states(policy.model, TokenBatch.of_groups([group]))[0]
    return torch.log1p(-policy.model.logits(states).softmax(-1)[:, :EOS].sum(-1)).sum()


def test_an_answer_does_not_depend_on_the_batch(policy: TextPolicy) -> None:
    obs = observations()
    together = policy.act(obs, np.random.default_rng(0))
    for row in (0, 4, 17):
        alone = policy.act(obs[row : row + 1], np.random.default_rng(0))
        assert alone.action.tobytes() == together.action[row].tobytes()
        assert alone.value is not None
        assert together.value is not None
        assert alone.value[0] == together.value[row]


def test_the_graph_is_the_same_bytes_and_says_the_same(policy: TextPolicy) -> None:
    graph, obs = build_graph(policy, 17), observations()
    assert build_graph(policy, 17) == graph
    found = dict(zip(policy.output_names, open_session(graph, "text").run(None, {INPUT: obs}), strict=True))
    with torch.no_grad():
        expected = {name: value.numpy() for name, value in policy.forward(torch.from_numpy(obs)).items()}
    np.testing.assert_array_equal(found["action"], expected["action"])
    np.testing.assert_allclose(found["value"], expected["value"], atol=1e-5)
    np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
    assert found["action"].dtype == np.uint8
    one = open_session(graph, "text").run(None, {INPUT: obs[:1]})
    np.testing.assert_array_equal(one[0], found["action"][:1])


def test_after_the_end_of_an_answer_the_logits_are_zeros(policy: TextPolicy) -> None:
    with torch.no_grad():
        found = policy.forward(torch.from_numpy(observations()))
    ended = (found["action"] == 0).cumsum(1) > 1  # the end itself has logits
    assert ended.any()
    assert (found["logits"][ended] == 0).all()
    assert (found["logits"][~ended][:, 0] >= found["logits"][~ended][:, 1]).all()


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (Box(0, 255, (4,), np.uint8), TextBox(4), "observation space Box"),
        (TextBox(4), Discrete(3), "action space Discrete"),
        (TextBox(4), TextBox(MOST_ANSWER_BYTES + 1), "set environment.kwargs.answer_bytes"),
    ],
)
def test_spaces_it_cannot_handle_are_named(observation: Box, action: Box, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextPolicy.for_spaces("grpo", observation, action, generator=torch.Generator())
