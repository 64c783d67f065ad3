"""Episodes of the gym played by plain objects: the same whoever plays them."""

import numpy as np
import pytest
from torch.nn.utils import parameters_to_vector

from loomrl.gym.domains import get_domain
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import MASKED
from loomrl.training.integrated.dialogue import Exercise, TaskAttempt
from loomrl.training.integrated.players import Compression, Player, PlayerShare, Weights, pack, unpack
from tests.support.language_policies import log_probs_of


def fresh(seed: int = 0) -> LanguagePolicy:
    return LanguagePolicy.fresh(seed, width=16, max_tokens=96, value_head=True)


def weights_of(policy: LanguagePolicy) -> Weights:
    return pack(policy, "none")


def exercises(domain: str, kind: str, count: int) -> list[Exercise]:
    rng = np.random.default_rng(0)
    tasks = [get_domain(domain).generate(rng, 0, [kind]) for _ in range(count)]
    return [Exercise(task, num_attempts=3, max_turns=2, max_prompt_tokens=80) for task in tasks]


ALL = [*exercises("math", "addition", 4), *exercises("game", "row_puzzle", 4)]


def played(
    places: list[int], seed: int = 0, version: int = 0, weights: Weights | None = None
) -> list[list[TaskAttempt]]:
    player = Player(fresh(), max_message_tokens=8)
    return player.play(
        PlayerShare([ALL[place] for place in places], places, seed),
        weights_of(fresh()) if weights is None else weights,
        version,
    )


def said(attempts: list[list[TaskAttempt]]) -> list[list[int]]:
    return [attempt.dialogue.tokens for ones in attempts for attempt in ones]


def test_what_is_played_does_not_depend_on_who_plays_it() -> None:
    whole = played(list(range(8)))
    shared = ([5, 1, 3], [7, 0, 2, 4, 6])
    shares = dict(zip(sum(shared, []), sum(map(played, shared), []), strict=True))
    parts = [shares[place] for place in range(8)]
    assert said(parts) == said(whole)
    for first, second in zip(sum(parts, []), sum(whole, []), strict=True):
        assert first.dialogue.log_probs == pytest.approx(second.dialogue.log_probs, abs=1e-4)
        assert first.score == second.score
    assert said(played(list(range(8)), seed=1)) != said(whole)


def test_attempts_at_a_task_differ_and_are_played_to_their_ends() -> None:
    (attempts,) = played([0])
    assert all(attempt.is_over for attempt in attempts)
    assert len({tuple(attempt.dialogue.tokens) for attempt in attempts}) == 3


def test_a_share_is_played_by_the_weights_that_came_with_it_and_stamped_with_their_version() -> None:
    player, share = Player(fresh(), max_message_tokens=8), PlayerShare(ALL[:2], [0, 1], seed=0)
    before = player.play(share, weights_of(fresh(0)), version=3)
    after = player.play(share, weights_of(fresh(1)), version=4)
    assert said(after) == said(played([0, 1], weights=weights_of(fresh(1)))) != said(before)
    assert {attempt.dialogue.version for attempt in sum(after, [])} == {4}


def split(attempt: TaskAttempt) -> tuple[list[int], list[int]]:
    """What was heard and said; a sum is answered once."""
    num_heard = attempt.dialogue.masks.count(MASKED)
    return attempt.dialogue.tokens[:num_heard], attempt.dialogue.tokens[num_heard:]


def test_log_probs_are_the_policys_own() -> None:
    ((attempt, *_),) = played([0])
    prompt, answer = split(attempt)
    assert attempt.dialogue.log_probs[len(prompt) :] == pytest.approx(
        log_probs_of(fresh(), prompt, answer, 1.0), abs=1e-4
    )


@pytest.mark.parametrize(
    ("compression", "bytes_each", "most_off"), [("none", 4.0, 0.0), ("int8", 1.03, 1 / 254 + 1e-6)]
)
def test_weights_arrive_as_they_were_or_nearly(compression: Compression, bytes_each: float, most_off: float) -> None:
    sent, received = fresh(1), fresh(0)
    weights = pack(sent, compression)
    unpack(weights, received)
    first, second = (parameters_to_vector(policy.model.parameters()).detach() for policy in (sent, received))
    assert weights.nbytes <= bytes_each * len(first)
    largest = first.abs().max()
    assert (first - second).abs().max() <= most_off * largest


def test_log_probs_are_those_of_the_weights_that_arrived() -> None:
    weights, arrived = pack(fresh(), "int8"), fresh(1)
    unpack(weights, arrived)
    ((attempt, *_),) = played([0], weights=weights)
    prompt, answer = split(attempt)
    assert attempt.dialogue.log_probs[len(prompt) :] == pytest.approx(
        log_probs_of(arrived, prompt, answer, 1.0), abs=1e-4
    )
