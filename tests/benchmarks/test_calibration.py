"""The kept rates are met, the page says what they are, and a sample of every topic is played anew."""

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.calibration.__main__ import status
from benchmarks.calibration.page import PAGE, rendered
from benchmarks.calibration.results import found, key, make, missing, store
from benchmarks.calibration.topic import Rate, Setting, Topic, at_most, covers, each, topics

TOPICS = topics()


@pytest.mark.parametrize("name", TOPICS)
def test_every_kept_rate_is_met_in_as_many_streams_as_are_stated(name: str) -> None:
    every = found(TOPICS[name])
    wrong = [(one.setting.name, one.rate, one.num_true, one.num_claimed) for one in every if not one.is_met]
    assert every
    assert not wrong


@pytest.mark.parametrize("name", TOPICS)
def test_a_sample_that_is_played_anew_bears_them_out(name: str) -> None:
    topic = TOPICS[name]
    kept = store(topic)
    rng = np.random.default_rng(int(kept.digest(topic.sources)[:16], 16))  # with other code another sample
    setting = rng.choice(np.array([one for one in topic.settings if one.in_gate], dtype=object))
    batch = int(rng.integers(setting.num_batches))
    counts = topic.play(setting, batch)
    if kept.is_current(key(setting, batch), topic.sources):
        assert counts == kept.values()[key(setting, batch)], "the same code found other streams; run make calibration"
    for rate in setting.rates:
        assert rate.p_value(*counts[rate.outcome]) > 0.001, (setting.name, rate, counts)


def test_the_page_is_drawn_from_the_results() -> None:
    text = PAGE.read_text()
    assert rendered(text) == text, "python -m benchmarks.calibration --render draws it anew"


# --- the frame itself -------------------------------------------------------------------------------------------


def _topic(probability: float) -> Topic:
    settings = Setting(
        "a coin", each(lambda rng: {"head": bool(rng.random() < probability)}), (at_most("head", 0.05),), 200
    )
    return Topic("coin", "", (settings,), ("benchmarks/resumable.py",))


def test_a_rate_is_rejected_where_a_binomial_test_at_1_percent_rejects_it() -> None:
    most = int(binom.ppf(0.99, 1000, 0.05))
    assert Rate("", "false alarms", 0.05).is_met(most, 1000)
    assert not Rate("", "false alarms", 0.05).is_met(most + 2, 1000)
    assert covers("", 0.95).is_met(1000 - most, 1000)
    assert not covers("", 0.95).is_met(1000 - most - 2, 1000)
    assert covers("", 0.95).is_met(0, 0), "nothing was claimed"


def test_wrong_rates_are_told_from_right_ones(tmp_path) -> None:
    for probability, is_met in ((0.04, True), (0.15, False)):
        folder = tmp_path / str(probability)
        make(_topic(probability), 1, lambda line: None, folder)
        (row,) = found(_topic(probability), folder)
        assert (row.num_streams, row.is_met) == (200, is_met)


def test_a_run_goes_on_where_it_was_and_makes_again_what_was_made_from_other_sources(tmp_path) -> None:
    topic, lines = _topic(0.04), list[str]()
    with pytest.raises(KeyboardInterrupt):
        make(topic, 1, lambda line: _interrupt(lines, line), tmp_path)
    assert len(lines) == 2
    make(topic, 1, lines.append, tmp_path)
    assert len(lines) == 4, "two of four batches were kept"
    assert not missing(topic, store(topic, tmp_path))
    assert status(topic, tmp_path) == "coin: 4 of 4 batches are of the code as it is"
    other = Topic("coin", "", topic.settings, ("benchmarks/page.py",))
    assert len(missing(other, store(topic, tmp_path))) == 4
    assert status(other, tmp_path) == "coin: 0 of 4 batches are of the code as it is"


def _interrupt(lines: list[str], line: str) -> None:
    lines.append(line)
    if len(lines) == 2:
        raise KeyboardInterrupt


def test_a_stream_without_an_outcome_is_an_error() -> None:
    topic = _topic(0.5)
    silent = Setting("silent", lambda rng, num_streams: {"head": []}, (at_most("head", 0.05),))
    with pytest.raises(ValueError, match="each rate's outcome for each of 50 streams"):
        topic.play(silent, 0)
