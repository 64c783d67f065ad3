"""The files of a language policy: round trips to the bit, and clear words for what does not fit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from loomrl.algorithms.architecture import ARCHITECTURE, WEIGHTS, PolicyArchitecture
from loomrl.environment.text import TextBox, encode_text
from loomrl.errors import ArtifactError, ConfigError
from loomrl.language.algorithms.answering import answer_bytes
from loomrl.language.algorithms.policy import TextPolicy
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig
from loomrl.language.policies.tokens import ByteTokenizer
from tests.support.language_models import small_policy


def test_what_was_saved_answers_alike_and_saves_the_same_bytes(tmp_path: Path) -> None:
    policy = small_policy(value_head=True)
    policy.save(tmp_path / "one")
    again = LanguagePolicy.load(tmp_path / "one")
    again.save(tmp_path / "two")
    for name in (ARCHITECTURE, WEIGHTS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    first, second = (
        one.answer(["1+2="], 5, SamplingConfig(max_tokens=8), torch.Generator().manual_seed(0))
        for one in (policy, again)
    )
    assert first == second


def test_what_the_training_stage_wrote_answers_as_it_did_there(tmp_path: Path) -> None:
    spaces = TextBox(8), TextBox(4)
    trained = TextPolicy.for_spaces("token_ppo", *spaces, generator=torch.Generator().manual_seed(2), value_head=True)
    trained.save(tmp_path)
    policy = LanguagePolicy.load(tmp_path)
    prompts = ["12+34=", "", "\u00e4!"]
    answers = policy.answer(prompts, 1, SamplingConfig(temperature=0.0, max_tokens=4), torch.Generator())
    said = [answer_bytes(one.token_ids, 4).tolist() for (one,) in answers]
    assert said == trained(np.stack([encode_text(prompt, 8) for prompt in prompts])).tolist()


def test_a_trained_policy_that_reads_no_texts_is_named(tmp_path: Path) -> None:
    PolicyArchitecture(
        algorithm="ppo", observation={}, action={}, hidden_sizes=[8], activation="tanh", normalize_observations=False
    ).write(tmp_path / ARCHITECTURE)
    with pytest.raises(ArtifactError, match=r"policy\.json describes a policy of ppo, which reads no texts"):
        LanguagePolicy.load(tmp_path)


def test_weights_follow_from_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = LanguagePolicy.fresh(0).model.state_dict()
    torch.manual_seed(6)
    second, other = LanguagePolicy.fresh(0).model.state_dict(), LanguagePolicy.fresh(1).model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["token_embedding.weight"], other["token_embedding.weight"])


def test_it_is_as_small_as_it_says() -> None:
    assert 120_000 < sum(parameter.numel() for parameter in LanguagePolicy.fresh(0).model.parameters()) < 125_000


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no multiple of num_heads"):
        LanguagePolicy.fresh(0, width=30)
    with pytest.raises(ConfigError, match="259 tokens, the model 15"):
        LanguagePolicy(ByteTokenizer(), small_policy().model)
    with pytest.raises(ConfigError, match="no value head"):
        small_policy().model.values(torch.zeros(1, 16))
    small_policy().save(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"torn")
    with pytest.raises(ArtifactError, match="weights"):
        LanguagePolicy.load(tmp_path)
    (tmp_path / ARCHITECTURE).write_text((tmp_path / ARCHITECTURE).read_text().replace('"width":16', '"width":15'))
    with pytest.raises(ArtifactError, match="describes no language policy"):
        LanguagePolicy.load(tmp_path)
