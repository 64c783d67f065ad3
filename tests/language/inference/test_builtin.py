"""The built-in engine: what it draws, what it says of that, and by which version."""

import gc
import random
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from math import exp

import pytest
import torch

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.language.inference import Completions, Sampling
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.inference.scheduler import Busy
from loomrl.language.policies.generation import GREEDY, generate
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import BOS, EOS
from tests.support.language_policies import check_made_by, language_policy


def asked(number: int) -> tuple[list[str], Sampling]:
    """Some prompt, and some way to draw an answer to it."""
    rng = random.Random(number)
    prompt = "".join(rng.choices("0123456789+", k=rng.randrange(12)))
    stop = ("=",) if rng.random() < 0.2 else ()
    sampling = Sampling(
        max_tokens=rng.randrange(1, 30),
        temperature=rng.choice([0.0, 0.5, 1.0, 1.5]),
        top_k=rng.choice([None, 3]),
        top_p=rng.choice([1.0, 0.8]),
        stop=stop,
        ignore_eos=rng.random() < 0.5,
        seed=number,
    )
    return [prompt], sampling


def test_what_comes_at_once_is_answered_as_if_it_came_alone() -> None:
    policy, questions = language_policy(), [asked(number) for number in range(60)]
    with BuiltinEngine(policy, max_running=16) as engine:
        alone = [engine.complete(prompts, n=2, sampling=sampling) for prompts, sampling in questions]
        with ThreadPoolExecutor(30) as pool:
            together = list(pool.map(lambda one: engine.complete(one[0], n=2, sampling=one[1]), questions))
    num_different = 0
    for [first], [second], (_, sampling) in zip(alone, together, questions, strict=True):
        for ours, theirs in zip(first.completions, second.completions, strict=True):
            check_made_by(policy, second, theirs, sampling.temperature or 1.0)
            if (ours.token_ids, ours.finish_reason, ours.text) == (theirs.token_ids, theirs.finish_reason, theirs.text):
                assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)
            else:
                num_different += 1
    assert num_different <= 1  # sums round differently in batches: a draw between two tokens may fall on the other


def test_the_likeliest_tokens_are_those_of_the_policy_itself() -> None:
    policy = language_policy()
    prompts = [policy.tokenizer.prompt(text) for text in ("1+2=", "", "12345678", "7-")]
    expected = generate(policy.model, prompts, 1, GREEDY.model_copy(update={"max_tokens": 30}), torch.Generator())
    with BuiltinEngine(policy) as engine:
        found = engine.complete(prompts, sampling=Sampling(temperature=0.0, max_tokens=30))
    assert [answer.completions[0].token_ids for answer in found] == [one.token_ids for [one] in expected]
    assert [answer.completions[0].finish_reason for answer in found] == [one.finish_reason for [one] in expected]


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    with BuiltinEngine(language_policy()) as engine:
        [answer] = engine.complete(["1+"], n=1_000, sampling=Sampling(max_tokens=1, temperature=2.0, seed=3))
    drawn = Counter(one.token_ids[0] for one in answer.completions)
    likely = {one.token_ids[0]: exp(one.log_probs[0]) for one in answer.completions}
    assert len(likely) > 3
    for token, probability in likely.items():
        assert drawn[token] / 1_000 == pytest.approx(probability, abs=0.06)  # four standard deviations


@pytest.mark.parametrize("cut", [{"top_k": 2}, {"top_p": 0.5}])
def test_what_is_unlikely_is_cut_off(cut: dict[str, float]) -> None:
    with BuiltinEngine(language_policy()) as engine:
        [answer] = engine.complete(["1+"], n=200, sampling=Sampling(max_tokens=1, temperature=2.0, seed=3, **cut))
        [whole] = engine.complete(["1+"], n=200, sampling=Sampling(max_tokens=1, temperature=2.0, seed=3))
    likely = sorted({exp(one.log_probs[0]) for one in whole.completions}, reverse=True)
    kept = {exp(one.log_probs[0]) for one in answer.completions}
    fewest = 2 if "top_k" in cut else next(size for size in range(1, 99) if sum(likely[:size]) >= 0.5)
    assert sorted(kept, reverse=True) == pytest.approx(likely[:fewest], rel=1e-3)


def test_a_completion_ends_where_it_is_told_to() -> None:
    policy = language_policy()
    with BuiltinEngine(policy) as engine:
        free = Sampling(max_tokens=40, temperature=1.0, seed=5, ignore_eos=True)
        [[whole]] = [one.completions for one in engine.complete(["1+1="], sampling=free)]
        text = policy.tokenizer.decode(whole.token_ids)
        stop, token = text[6:8], whole.token_ids[4]
        [[by_text]] = [
            one.completions for one in engine.complete(["1+1="], sampling=free.model_copy(update={"stop": (stop,)}))
        ]
        by_token = engine.complete(["1+1="], sampling=free.model_copy(update={"stop_token_ids": (token,)}))
    assert (whole.finish_reason, len(whole.token_ids)) == ("length", 40)
    assert (by_text.finish_reason, by_text.stopped_by) == ("stop", stop)
    assert by_text.text == text[: text.index(stop)]
    assert by_text.token_ids == whole.token_ids[: len(by_text.token_ids)]
    [stopped] = by_token[0].completions
    assert (stopped.finish_reason, stopped.stopped_by, stopped.token_ids[-1]) == ("stop", token, token)
    assert token not in stopped.token_ids[:-1]


def test_half_a_character_is_no_stop_and_ends_nobody_elses_completion() -> None:
    policy = LanguagePolicy.fresh(0, width=16, num_heads=2)
    with BuiltinEngine(policy) as engine:
        answers = engine.complete(["é"], n=20, sampling=Sampling(max_tokens=30, stop=("\ufffd", "é"), seed=0))
        assert engine.is_alive
    for one in answers[0].completions:
        assert "\ufffd" not in one.text
        assert one.finish_reason in ("stop", "length")


def test_the_end_token_is_told_and_stands_for_nothing() -> None:
    with BuiltinEngine(language_policy()) as engine:
        answers = engine.complete([[BOS]], n=200, sampling=Sampling(max_tokens=40, temperature=2.0, seed=0))
    ended = [one for one in answers[0].completions if one.finish_reason == "stop"]
    assert ended
    for one in ended:
        assert one.token_ids[-1] == EOS
        assert EOS not in one.token_ids[:-1]
        assert len(one.token_ids) == len(one.log_probs)


def test_an_answer_ends_where_the_policy_has_no_more_room() -> None:
    with BuiltinEngine(language_policy(max_tokens=12)) as engine:
        [answer] = engine.complete(["1234567"], sampling=Sampling(max_tokens=1_000, ignore_eos=True))
        assert len(answer.completions[0].token_ids) == 12 - 8
        assert answer.completions[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [([], "empty"), ([1, 99], "99 is no token"), ("1" * 60, "leaves no room"), ("x", "alphabet"), ([-1], "no token")],
)
def test_a_prompt_that_cannot_be_read_is_refused(prompt: str | list[int], reason: str) -> None:
    with BuiltinEngine(language_policy()) as engine, pytest.raises(ConfigError, match=reason):
        engine.complete(["1", prompt])


def test_an_update_stops_nothing_and_every_completion_is_of_one_version() -> None:
    policies = [language_policy(seed) for seed in range(6)]
    answers: list[Completions] = []
    sampling = Sampling(max_tokens=40, ignore_eos=True)
    with BuiltinEngine(policies[0], max_running=8) as engine:
        done = threading.Event()

        def ask() -> None:
            while not done.is_set():
                answers.extend(engine.complete(["1+2=", "3"], n=2, sampling=sampling))

        askers = [threading.Thread(target=ask) for _ in range(6)]
        for asker in askers:
            asker.start()
        for version, policy in enumerate(policies[1:], 1):
            seen = len(answers) + 20
            while len(answers) < seen:
                time.sleep(0.001)
            engine.update(policy, version)
        seen = len(answers) + 40
        while len(answers) < seen:
            time.sleep(0.001)
        done.set()
        for asker in askers:
            asker.join()
    assert {one.version for answer in answers for one in answer.completions} == set(range(6))
    for answer in answers[:: max(1, len(answers) // 60)]:
        assert len({one.version for one in answer.completions}) == 1
        for one in answer.completions:
            check_made_by(policies[one.version], answer, one, 1.0)


def test_a_version_is_a_copy() -> None:
    policy = language_policy()
    sampling = Sampling(seed=1, max_tokens=20)
    with BuiltinEngine(policy) as engine:
        before = engine.complete(["1"], sampling=sampling)
        with torch.no_grad():
            policy.model.token_embedding.weight.add_(1.0)
        assert engine.complete(["1"], sampling=sampling) == before
        assert engine.load_policy(policy) == 1
        assert engine.complete(["1"], sampling=sampling)[0].completions[0].version == 1


def test_versions_that_nothing_is_begun_by_are_forgotten() -> None:
    with BuiltinEngine(language_policy()) as engine:
        copies = []
        for version in range(1, 5):
            copies.append(weakref.ref(engine.policy))
            engine.update(language_policy(version), version)
        gc.collect()
        assert [copy() for copy in copies] == [None] * 4


def test_weights_that_cannot_be_served_change_nothing() -> None:
    broken = language_policy(1)
    with torch.no_grad():
        broken.model.norm.weight[0] = float("nan")
    with BuiltinEngine(language_policy()) as engine:
        with pytest.raises(ArtifactError, match="norm.weight"):
            engine.update(broken, 1)
        with pytest.raises(ConfigError, match="another model"):
            engine.update(language_policy(1, max_tokens=20), 1)
        with pytest.raises(ConfigError, match="another tokenizer"):
            engine.update(LanguagePolicy.fresh(0), 1)
        with pytest.raises(ConfigError, match="version 0 is served already"):
            engine.update(language_policy(1), 0)
        engine.update(language_policy(0), 0)  # the same again is no update
        assert engine.complete(["1"])[0].completions[0].version == 0


def test_without_a_policy_nothing_is_answered() -> None:
    with BuiltinEngine() as engine:
        assert engine.version == -1
        with pytest.raises(ServiceError, match="no policy"):
            engine.complete(["1"])


def test_what_is_paused_begins_nothing_until_it_goes_on() -> None:
    with BuiltinEngine(language_policy()) as engine:
        engine.pause("wait")
        [waiting] = engine.submit(["1"])
        engine.update(language_policy(1), 1)
        assert not waiting.done()
        engine.resume()
        assert waiting.result(30).completions[0].version == 1


def test_what_is_kept_is_finished_by_the_version_that_began_it() -> None:
    policy = language_policy(max_tokens=4_000)
    with BuiltinEngine(policy) as engine:
        [running] = engine.submit(["1"], sampling=Sampling(max_tokens=2_000, ignore_eos=True))
        while not engine.scheduler.num_running:
            time.sleep(0.001)
        engine.pause("keep")
        engine.update(language_policy(1, max_tokens=4_000), 1)
        assert not running.done()
        engine.resume()
        answer = running.result(60)
        assert answer.completions[0].version == 0
        check_made_by(policy, answer, answer.completions[0], 1.0)


def test_what_is_ended_says_how_far_it_came() -> None:
    policy = language_policy(max_tokens=4_000)
    with BuiltinEngine(policy) as engine:
        [running] = engine.submit(["1"], sampling=Sampling(max_tokens=3_900, ignore_eos=True))
        while not engine.scheduler.num_running:
            time.sleep(0.001)
        engine.pause("abort")
        answer = running.result(30)
        assert answer.completions[0].finish_reason == "abort"
        assert len(answer.completions[0].token_ids) < 3_900
        engine.resume()
        assert engine.complete(["1"])[0].completions[0].finish_reason in ("stop", "length")


def test_more_than_may_wait_is_refused_and_costs_the_others_nothing() -> None:
    with BuiltinEngine(language_policy(), max_waiting=3) as engine:
        engine.pause("wait")
        waiting = engine.submit(["1", "2"])
        with pytest.raises(Busy, match="2 completions wait, of at most 3"):
            engine.submit(["3", "4"])
        with pytest.raises(ConfigError, match="4 completions at once; at most 3"):
            engine.submit(["3", "4"], n=2)
        engine.resume()
        assert all(future.result(30).completions for future in waiting)


def test_what_nobody_waits_for_is_decoded_no_further() -> None:
    with BuiltinEngine(language_policy(max_tokens=4_000)) as engine:
        [running] = engine.submit(["1"], sampling=Sampling(max_tokens=3_900, ignore_eos=True))
        while not engine.scheduler.num_running:
            time.sleep(0.001)
        assert running.cancel()
        assert engine.complete(["2"])[0].completions
        while engine.scheduler.num_running:
            time.sleep(0.001)


def test_closing_fails_what_is_unanswered() -> None:
    engine = BuiltinEngine(language_policy())
    engine.pause("wait")
    [waiting] = engine.submit(["1"])
    engine.close()
    with pytest.raises(ServiceError, match="closed"):
        waiting.result(30)
    with pytest.raises(ServiceError, match="closed"):
        engine.complete(["1"])
