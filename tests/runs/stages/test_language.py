"""A language policy that says first letters: through the five stages, served as bytes and as text, and shadowed."""

from pathlib import Path

import numpy as np
import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env
from loomrl.environment.text import decode_text, encode_text
from loomrl.evaluation.config import EvaluationConfig
from loomrl.evaluation.samples import FIRST, WORST
from loomrl.export.config import ExportConfig
from loomrl.gym.held_out import is_held_out
from loomrl.runs import preflight
from loomrl.runs.config import PolicyConfig
from loomrl.safety.case.document import read_case
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.settings import ServerSettings
from loomrl.shadow.config import ShadowConfig
from loomrl.shadow.shadow import run_shadow
from loomrl.storage.registry import Registry
from loomrl.system.files import read_json, write_sums
from loomrl.training.config import TrainingConfig, ValidationConfig
from loomrl.types import EvaluationReport, ParityReport, Verdict
from tests.support.inside import Inside
from tests.support.trained import Policy, through_the_stages
from tests.support.user_environments import write_initials

SHARE = 0.25
CONFIG = PolicyConfig(
    name="initials",
    environment=EnvironmentConfig(id="CartPole-v1"),
    training=TrainingConfig(
        algorithm="grpo",
        seed=1,
        total_env_steps=16_384,
        validation=ValidationConfig(interval_env_steps=1_024, num_episodes=64, stop_at_return=1.0),
        parameters={"learning_rate": 2e-3, "num_tasks": 16, "width": 32,
                    "warm_start": {"target_accuracy": 0.5, "learning_rate": 4e-3, "batch_size": 32}},
    ),
    evaluation=EvaluationConfig(num_episodes=60, trajectory_episodes=60, bootstrap_replicates=100, success_return=1.0),
    safety=SafetyConfig(
        num_episodes=60,
        constraints=[ConstraintConfig(name="short", quantity="info.answer_bytes", high=1, max_probability=0.1)],
        checks={"verified_answers": {"num_tasks": 4, "max_other_share": 0.2}},
    ),
    export=ExportConfig(parity_visited=60, parity_random=256),
)  # fmt: skip


@pytest.fixture(scope="module")
def initials(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Trained, evaluated, examined and exported. Never change its folders."""
    code, root = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("initials")
    write_initials(code, "initials_through_the_stages")
    environment = EnvironmentConfig(
        id="Initials",
        entry_point="initials_through_the_stages:Environment",
        path=code,
        backend="serial",
        kwargs={"held_out_share": SHARE},
        fingerprint_episodes=4,
        fingerprint_steps=1,
    )
    return through_the_stages(root, environment, CONFIG)


def test_nothing_is_found_wrong_with_it_before_training(tmp_path: Path) -> None:
    preflight.check(CONFIG, tmp_path)


@pytest.mark.long
def test_it_answers_what_it_never_trained_on(initials: Policy) -> None:
    report = EvaluationReport.read(initials.evaluation / "evaluation.json")
    assert report.success_rate is not None
    assert report.success_rate.estimate > 0.9
    env = make_env(initials.environment)
    for seed in report.seeds:
        env.reset(seed=seed)
        assert is_held_out(env.unwrapped.task, SHARE)
    env.close()


def test_examples_came_first_and_then_rewards(initials: Policy) -> None:
    updates = read_json(initials.training / "curves.json")["updates"]
    taught = [row["accuracy"] for row in updates if "supervised_loss" in row]
    assert max(taught[:-1]) < 0.5 <= taught[-1]
    reinforced = updates[len(taught) :]
    assert reinforced
    assert all("supervised_loss" not in row and row["num_groups"] == 16 for row in reinforced)


def test_people_can_read_what_it_answers(initials: Policy) -> None:
    samples = EvaluationReport.read(initials.evaluation / "evaluation.json").samples
    for sample in samples:
        assert (sample.answer == sample.prompt[0]) == (sample.episode_return == 1.0)
    assert len(samples) == FIRST + WORST


def test_the_case_looks_for_fooled_verifiers_and_says_what_does_not_apply(initials: Policy) -> None:
    case = read_case(initials.root / "safety")
    claims = {claim.id: claim for claim in case.claims}
    assert claims["verified_answers.attacks"].verdict is Verdict.SUPPORTED
    assert claims["verified_answers.attacks"].num_samples > 4 * 20
    assert claims["verified_answers.paid"].verdict is Verdict.SUPPORTED
    assert case.not_applicable.keys() >= {"robustness", "disturbed_return", "out_of_distribution"}
    assert not any(claim.id.startswith("robustness") for claim in case.claims)


def test_the_graph_decodes_as_the_network_does(initials: Policy) -> None:
    manifest = ServedPolicy.load(initials.root / "export").manifest
    assert manifest.action_kind == "text"
    assert manifest.inputs == {"observation": {"dtype": "uint8", "shape": [-1, 4]}}
    assert manifest.outputs["action"] == {"dtype": "uint8", "shape": [-1, 3]}
    parity = ParityReport.read(initials.root / "export" / "parity.json")
    assert parity.passed
    assert parity.num_observations == 60 + 256


def test_it_is_asked_in_text_in_bytes_and_by_the_inference_protocol(initials: Policy, loomrl_home: Path) -> None:
    samples = EvaluationReport.read(initials.evaluation / "evaluation.json").samples[:8]
    asks = [{"agent_id": "a", "observation": sample.prompt} for sample in samples]
    rows = np.stack([encode_text(sample.prompt, 4) for sample in samples])
    tensor = {"name": "observation", "shape": list(rows.shape), "datatype": "UINT8", "data": rows.ravel().tolist()}
    with Inside(ServerSettings("initials", folders={"champion": initials.root / "export"})) as server:
        told = server.ask("POST", "/decide", {"requests": asks}).json()["decisions"]
        alone = server.ask("POST", "/decide", {"agent_id": "a", "observation": rows[0].tolist()}).json()
        inferred = server.ask("POST", "/v2/models/initials/infer", {"inputs": [tensor]}).json()
    answers = [decode_text(one["action"]) for one in told]
    assert answers == [sample.answer for sample in samples]
    assert alone["action"] == told[0]["action"]
    outputs = {output["name"]: output for output in inferred["outputs"]}
    assert outputs["action"]["datatype"] == "UINT8"
    assert outputs["action"]["data"] == [letter for one in told for letter in one["action"]]


REFUSED = {
    "too long": ({"observation": "abcde"}, "has 5 bytes of UTF-8; the policy reads 4"),
    "a zero inside": ({"observation": "a\0b"}, "a text without U+0000"),
    "no text": ({"observation": {"text": "abc"}}, "must be a text"),
    "exploring": ({"observation": "abc", "explore": True}, "`explore` must be false"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_no_answer_is_for_is_refused(initials: Policy, loomrl_home: Path, why: str) -> None:
    ask, message = REFUSED[why]
    with Inside(ServerSettings("initials", folders={"champion": initials.root / "export"})) as server:
        answer = server.ask("POST", "/decide", {"agent_id": "a", **ask})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.long
def test_it_is_shadowed(initials: Policy, loomrl_home: Path) -> None:
    config = CONFIG.model_copy(update={"shadow": ShadowConfig(num_episodes=8, min_decisions=40)})
    write_sums(initials.root / "export")
    version = Registry().register("initials", initials.root / "export", "one")
    alone = run_shadow(config, initials.environment, version, None)
    assert (alone.num_decisions >= 40, alone.bitwise_equal) == (True, True)
