"""What holds for every domain: whoever adds one gets these tests by naming its adversarial answers."""

import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from loomrl.environment.check import check_environment
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env
from loomrl.environment.seeds import FIRST_TRAINING_SEED, VALIDATION_SEEDS
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.spaces import space_from_json, space_to_json
from loomrl.environment.text import TextBox, decode_text, encode_text
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.gym.attacks import general_attacks
from loomrl.gym.check import check_domain
from loomrl.gym.domains import get_domain, get_environment, names, own_names
from loomrl.gym.held_out import is_held_out, part_of
from loomrl.gym.tasks import Domain, Task
from tests.support.gym_attacks import ATTACKS

LEVELS = (0, 3, 5)  # of higher ones some tasks take long to make


def tasks(domain: Domain, levels: tuple[int, ...] = LEVELS, each: int = 1) -> list[Task]:
    """Some tasks of every kind."""
    rng = np.random.default_rng(7)
    return [domain.generate(rng, level, [kind]) for level in levels for kind in domain.kinds for _ in range(each)]


def bare_score(domain: Domain, task: Task) -> float:
    """What the task's own answer earns: everything that does not stand beside it."""
    earned = {name: float(name not in domain.optional_components) for name in domain.weights}
    return domain.total(task, earned)


def gym_id(name: str) -> str:
    return f"loomrl/{''.join(part.capitalize() for part in name.split('_'))}-v0"


@pytest.fixture(params=own_names())
def domain(request: pytest.FixtureRequest) -> Domain:
    return get_domain(request.param)


def test_weights_and_names(domain: Domain) -> None:
    assert sum(domain.weights.values()) == pytest.approx(1.0)
    assert domain.name in names()
    assert get_environment(domain.name).domain is domain


def test_right_answers_score_full_and_wrong_ones_nothing(domain: Domain) -> None:
    for task in tasks(domain, each=2):
        score = domain.score(task, task.right)
        assert score.solved, (task.kind, task.prompt, task.right, score)
        assert score.total == pytest.approx(bare_score(domain, task)), (task.kind, task.prompt, task.right, score)
        assert len({task.right, *task.wrong}) == 1 + len(task.wrong)
        for wrong in task.wrong:
            assert domain.score(task, wrong).total == 0.0, (task.kind, task.prompt, wrong)


def test_whole_answers_are_verified_as_they_are_scored(domain: Domain) -> None:
    for task in tasks(domain, levels=(5,)):
        for answer in (task.right, "", "nonsense"):
            found = domain.nothing() | domain.verify(task, answer)
            assert found == domain.score(task, answer).rewards, (task.kind, answer)


def test_adversarial_answers_gain_nothing(domain: Domain) -> None:
    for task in tasks(domain, levels=(2,) if domain.name == "code" else (0, 2, 5)):
        own = ATTACKS[domain.name](task)
        assert len(own) >= 20
        for answer in [*general_attacks(domain, task), *own]:
            assert domain.score(task, answer).total == 0.0, (task.kind, task.prompt, task.right, answer[:200])


def test_the_domain_conforms(domain: Domain) -> None:
    assert check_domain(domain, levels=(1, 6)) == []


def test_a_choice_has_one_best_message(domain: Domain) -> None:
    rng = np.random.default_rng(3)
    for task in tasks(domain, levels=(0,)):
        if len(domain.messages(task, task.right)) == 1:
            offered = domain.choices(task, rng)
            scores = [domain.score(task, one) for one in offered]
            assert [score.solved for score in scores].count(True) == 1
            assert [score.total for score in scores].count(0.0) == len(scores) - 1


DIGEST = """
import hashlib, sys
import numpy as np
from loomrl.gym.attacks import general_attacks
from loomrl.gym.check import check_domain
from loomrl.gym.domains import get_domain
for name in sys.argv[1:]:
    domain, rng, digest = get_domain(name), np.random.default_rng(11), hashlib.sha256()
    for level in (0, 3, 5):
        for kind in domain.kinds:
            digest.update(domain.generate(rng, level, [kind]).to_bytes())
    print(name, digest.hexdigest())
"""


@cache
def digests_elsewhere(*domains: str) -> list[dict[str, str]]:
    """Of tasks of these domains, in two processes that hash strings differently."""
    command = [sys.executable, "-W", "ignore", "-c", DIGEST, *domains]
    found = []
    for hash_seed in ("1", "2"):
        settings = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
        found.append(dict(line.split() for line in done.stdout.splitlines()))
    return found


@pytest.mark.long_cases("math")
def test_a_seed_gives_the_same_bytes_in_every_process(domain: Domain) -> None:
    rng, digest = np.random.default_rng(11), hashlib.sha256()
    for level in LEVELS:
        for kind in domain.kinds:
            digest.update(domain.generate(rng, level, [kind]).to_bytes())
    dear = ["math"]  # as much as all others
    together = dear if domain.name in dear else [name for name in own_names() if name not in dear]
    assert [found[domain.name] for found in digests_elsewhere(*together)] == [digest.hexdigest()] * 2


@pytest.mark.parametrize("mode", ["text", "choice"])
@pytest.mark.long_cases("code-choice")
def test_it_conforms(domain: Domain, mode: str) -> None:
    env = gymnasium.make(gym_id(domain.name), mode=mode, disable_env_checker=True).unwrapped
    findings = check_environment(env)
    assert [finding for finding in findings if finding.severity == "error"] == []
    if mode == "choice":
        assert findings == []


@pytest.mark.parametrize("mode", ["text", "choice"])
def test_a_snapshot_runs(domain: Domain, mode: str, tmp_path: Path) -> None:
    config = EnvironmentConfig(id=gym_id(domain.name), kwargs={"mode": mode}, fingerprint_steps=10)
    snapshot = take_snapshot(config, tmp_path, tmp_path / "snapshot")
    assert {"loomrl.gym.domains", "loomrl.gym.environment", "loomrl.gym.tasks"} <= set(snapshot.source_roots)
    env = make_env(tmp_path / "snapshot")
    _, info = env.reset(seed=5)
    _, again = env.reset(seed=5)
    env.close()
    assert info == again


def test_text_mode_pays_for_the_right_answer(domain: Domain) -> None:
    env = get_environment(domain.name)(mode="text", difficulty=1)
    _, info = env.reset(seed=2)
    assert info["text"] == env.task.prompt
    earned, terminated = 0.0, False
    for message in domain.messages(env.task, env.task.right):
        assert not terminated
        _, reward, terminated, truncated, info = env.step(encode_text(message, domain.answer_bytes))
        earned += reward
    assert info["rewards"].keys() == domain.weights.keys()
    assert (earned, terminated, truncated) == (pytest.approx(bare_score(domain, env.task)), True, False)
    with pytest.raises(EnvironmentFault, match="call reset"):
        env.step(env.action_space.sample())


def test_choice_mode_pays_for_the_best_choice(domain: Domain) -> None:
    env = get_environment(domain.name)(mode="choice")
    rewards, bare = [], []
    for seed in range(4):
        _, info = env.reset(seed=seed)
        task = env.task
        if len(domain.messages(task, task.right)) == 1:
            rewards.append(env.step(info["choices"].index(task.right))[1])
            bare.append(bare_score(domain, task))
    env.close()
    assert rewards == pytest.approx(bare)


def test_a_level_can_be_set_for_an_episode(domain: Domain) -> None:
    env = get_environment(domain.name)()
    _, info = env.reset(seed=1, options={"difficulty": 2})
    assert info["difficulty"] == 2
    _, info = env.reset(seed=1)
    assert info["difficulty"] == 0
    env.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "picture"}, "mode is 'picture'"),
        ({"difficulty": 10}, "a level from 0 to 9"),
        ({"difficulty": "impossible"}, "one of beginner"),
        ({"max_steps": 0}, "at least 1"),
        ({"kinds": ["no_such_kind"]}, "no tasks of kind 'no_such_kind'"),
        ({"prompt_bytes": 0}, "prompt_bytes is 0"),
        ({"answer_bytes": 0}, "answer_bytes is 0"),
        ({"held_out_share": 1.0}, "held_out_share is 1.0"),
        ({"held_out_share": "0.2"}, "held_out_share is '0.2'"),
        ({"kinds": "addition"}, "kinds is 'addition'; it is a list of names"),
        ({"kinds": None}, "kinds is None; it is a list of names"),
        ({"kinds": [["addition"]]}, "it is a list of names"),
        ({"max_steps": 1.5}, "max_steps is 1.5; it must be a whole number"),
        ({"prompt_bytes": "8"}, "prompt_bytes is '8'; it must be a whole number"),
        ({"answer_bytes": True}, "answer_bytes is True; it must be a whole number"),
    ],
)
def test_wrong_parameters_are_named(domain: Domain, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_environment(domain.name)(**wrong)


def test_seeds_of_training_of_validation_and_of_those_who_judge_draw_other_tasks() -> None:
    env = get_environment("math")(kinds=["addition"], difficulty=1, held_out_share=0.3)
    drawn: dict[str, set[str]] = {}
    firsts = {"training": FIRST_TRAINING_SEED, "validation": VALIDATION_SEEDS.start, "judging": 0}
    for part, first in firsts.items():
        drawn[part] = set()
        for seed in range(200):
            for again in (first + seed, None):  # without a seed it goes on in the same part
                env.reset(seed=again)
                drawn[part].add(env.task.prompt)
                assert part_of(env.task, 0.3) == part
                assert is_held_out(env.task, 0.3) is (part != "training")
    assert all(len(prompts) > 100 for prompts in drawn.values())
    assert not drawn["training"] & drawn["validation"]
    assert not drawn["judging"] & (drawn["training"] | drawn["validation"])


def test_sizes_are_those_that_were_asked_for() -> None:
    env = get_environment("math")(kinds=["addition"], difficulty=1, prompt_bytes=6, answer_bytes=3)
    observation, info = env.reset(seed=1)
    assert (env.observation_space, env.action_space) == (TextBox(6), TextBox(3))
    assert observation.tobytes().decode() == info["text"]
    _, _, _, _, info = env.step(encode_text(env.task.right, 3))
    assert (info["answer_bytes"], info["letter_perfect"]) == (len(env.task.right), 1.0)
    env.reset(seed=1)
    assert env.send(f" {env.task.right}")[4]["letter_perfect"] == 0.0
    crowded = get_environment("math")(kinds=["addition"], difficulty=1, prompt_bytes=5)
    with pytest.raises(ConfigError, match="6 bytes does not fit into 5: .*; raise environment.kwargs.prompt_bytes"):
        crowded.reset(seed=1)


def test_texts_in_a_box_end_once() -> None:
    box = TextBox(4)
    box.seed(1)
    assert all(box.sample() in box for _ in range(50))
    assert {len(decode_text(box.sample())) for _ in range(100)} == {0, 1, 2, 3, 4}
    assert np.array([65, 0, 66, 0], np.uint8) not in box
    assert space_from_json(space_to_json(box)) == box
    assert isinstance(space_from_json(space_to_json(box)), TextBox)


def test_an_unknown_domain_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no domain 'poetry'; there are: .*math"):
        get_domain("poetry")


def test_text_survives_its_bytes() -> None:
    assert decode_text(encode_text("x² = 4", 16)) == "x² = 4"
    with pytest.raises(EnvironmentFault, match="does not fit"):
        encode_text("long", 3)
