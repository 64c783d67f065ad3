"""The two t tests that decide in the gate and in shadow, where what matters is one-sided and rare: a value of a
protected feature that costs few episodes much (`reward_bias.NAME.outcome`, 64 seeds), and a challenger whose actions
shake in few episodes (`consequences.travel`, 512 of them). The mean is exactly what is not allowed any more; a
stream is wrong where it is called within that.
"""

from benchmarks.calibration.topics import reward_bias, shadow_travel_and_noise
from benchmarks.calibration.topics.reward_bias import _as_before, _attempts, _setting, _some_lose
from benchmarks.calibration.topics.shadow_travel_and_noise import AT_LIMIT, shakes, travels

SOURCES = (
    "benchmarks/calibration/topics/reward_bias.py",
    "benchmarks/calibration/topics/shadow_travel_and_noise.py",
    *dict.fromkeys((*reward_bias.SOURCES, *shadow_travel_and_noise.SOURCES)),
)
_WRONG = reward_bias._WRONG
SETTINGS = (
    _setting("losses that are exponential", _WRONG, _as_before, lambda rng, count: -rng.exponential(1.0, count)),
    _setting("one in 5 loses 5", _WRONG, _as_before, _some_lose(0.2)),
    _setting("one in 20 loses 20", _WRONG, _as_before, _some_lose(0.05)),
    _attempts("one in 20 loses 20, 20 attempts", _as_before, _some_lose(0.05)),
    travels("one episode in 200 shakes", AT_LIMIT, shakes(0.005, 0.007)),
)
