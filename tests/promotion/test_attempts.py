"""Attempts to pass the gate are on record, and the error is spent over them."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from sqlalchemy import text

from loomrl.errors import ArtifactError
from loomrl.promotion.attempts import ATTEMPT_TAG, KIND, PAYLOAD_TYPE, GateAttempt, attempts, record_attempt
from loomrl.runs.config import load_config
from loomrl.runs.stages import Folders
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.statistics.intervals import Floats, binomial_p_below, paired_p_below
from loomrl.statistics.spending import level, short_of
from loomrl.storage.ledger import Move, record_move
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.records import Event
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.storage.run_record import now
from loomrl.system.home import project_root
from loomrl.system.security.signing import sign_envelope
from loomrl.types import Claim, SafetyCase, Verdict
from tasks import export

SETTINGS = SafetyConfig()


def case_of(digest: str, *claims: Claim) -> SafetyCase:
    decision = {"passed": True, "blocking": [], "reason": ""}
    return SafetyCase.model_validate(
        {
            "policy_digest": digest,
            "snapshot_digest": "s",
            "evaluation_digest": "e",
            "claims": [claim.to_json() for claim in claims],
            "decision": decision,
        }
    )


def claim(p_value: float | None, mandatory: bool = True, num_samples: int = 448) -> Claim:
    return Claim(
        id="limit",
        stage="statistical limits",
        statement="it holds",
        mandatory=mandatory,
        method="a bound",
        verdict=Verdict.SUPPORTED,
        confidence=0.95,
        p_value=p_value,
        num_samples=num_samples,
    )


def numbers(db: LoomDB, *digests: str, settings: SafetyConfig = SETTINGS) -> list[int]:
    return [record_attempt(db, "cartpole", case_of(one), settings, "run").number for one in digests]


def delete_attempts(db: LoomDB, kept: int) -> None:
    """All but the oldest `kept`."""
    with db._engine.begin() as connection:
        newest = connection.execute(text("select id from events where kind = :kind order by id"), {"kind": KIND})
        for (event,) in newest.fetchall()[kept:]:
            connection.execute(text("delete from events where id = :id"), {"id": event})


def promote(db: LoomDB, kind: str = "promotion") -> None:
    record_move(
        db, Move(kind=kind, policy="cartpole", version="1", before=None, run_id=f"{kind}-1", reason="", time=now())
    )


# --- on record ---


def test_each_policy_is_an_attempt_and_the_same_again_is_the_same_one(loomrl_home: Path) -> None:
    with LoomDB.open() as db:
        assert numbers(db, "a", "b", "a", "c", "b") == [1, 2, 1, 3, 2]
        assert [one.policy_digest for one in attempts(db, "cartpole")] == ["a", "b", "c"]
        assert attempts(db, "pendulum") == []


def test_other_seeds_or_limits_are_another_attempt_and_more_environments_are_not(loomrl_home: Path) -> None:
    limit = ConstraintConfig(name="limit", quantity="length", low=1)
    others = [{"first_seed": 3_000_000}, {"num_episodes": 500}, {"constraints": [limit]}]
    with LoomDB.open() as db:
        numbers(db, "a")
        assert [numbers(db, "a", settings=SETTINGS.model_copy(update=one)) for one in others] == [[2], [3], [4]]
        assert numbers(db, "a", settings=SETTINGS.model_copy(update={"num_envs": 3})) == [1]


def test_a_promotion_begins_a_new_count_and_gives_nothing_old_another_level(loomrl_home: Path) -> None:
    with LoomDB.open() as db:
        assert numbers(db, "a", "b") == [1, 2]
        promote(db, "rollback")
        assert numbers(db, "c") == [3]
        promote(db)
        assert numbers(db, "d", "b", "e") == [1, 2, 2]  # b keeps its own number


def test_a_case_that_dvc_alone_built_is_an_attempt_once_it_becomes_a_version(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(project_root() / "configs" / "cartpole.yaml")
    folders = Folders(tmp_path, "cartpole")
    folders["safety"].mkdir(parents=True)
    case_of("a").write(folders["safety"] / "case.json")
    monkeypatch.setattr(export, "project_folders", lambda _: folders)
    monkeypatch.setattr(export, "run_config", lambda _: config)
    recorded = export._attempt("run", "cartpole", Registry())
    with LoomDB.open() as db:
        assert attempts(db, "cartpole") == [recorded]


def test_hosts_that_record_one_at_once_record_one_after_the_other(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoomDB.open() as one, LoomDB.open() as other:
        numbers(one, "a")
        add_event = one.add_event

        def later(kind: str, data: dict[str, object], place: str) -> bool:
            monkeypatch.setattr(one, "add_event", add_event)
            assert numbers(other, "b") == [2]
            return add_event(kind, data, place)

        monkeypatch.setattr(one, "add_event", later)
        assert numbers(one, "c") == [3]
        assert [attempt.policy_digest for attempt in attempts(other, "cartpole")] == ["a", "b", "c"]


def test_what_another_process_records_meanwhile_is_not_missed(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoomDB.open() as one, LoomDB.open() as other:
        numbers(one, "a")
        events = one.events

        def earlier(kind: str) -> list[Event]:
            found = events(kind)
            monkeypatch.setattr(one, "events", events)
            assert numbers(other, "b") == [2]
            return found

        monkeypatch.setattr(one, "events", earlier)
        assert numbers(one, "c") == [3]


def test_what_is_known_is_the_newest_though_a_process_comes_late_to_keep_its_own(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoomDB.open() as one, LoomDB.open() as other:
        add_event = one.add_event

        def slowly(kind: str, data: dict[str, object], place: str) -> bool:
            added = add_event(kind, data, place)
            assert numbers(other, "b") == [2]
            return added

        monkeypatch.setattr(one, "add_event", slowly)
        assert numbers(one, "a") == [1]
        assert GateAttempt.read(loomrl_home / "attempts" / "cartpole.json").policy_digest == "b"
        delete_attempts(one, kept=1)
        with pytest.raises(ArtifactError, match="LoomDB lacks attempt 2"):
            attempts(one, "cartpole")


@pytest.mark.parametrize("kept", [0, 1])
def test_a_host_that_never_saw_an_attempt_misses_it_where_a_version_names_it(loomrl_home: Path, kept: int) -> None:
    with LoomDB.open() as db:
        numbers(db, "a", "b", "c")
        tags = [{ATTEMPT_TAG: one.digest} for one in attempts(db, "cartpole")]
        versions = [
            PolicyVersion(
                policy="cartpole", version="1", run_id="earliest", created=now(), source="", tags={}
            ),  # from before
            PolicyVersion(policy="cartpole", version="2", run_id="early", created=now(), source="", tags=tags[0]),
            PolicyVersion(policy="cartpole", version="3", run_id="late", created=now(), source="", tags=tags[1]),
        ]
        (loomrl_home / "attempts" / "cartpole.json").unlink()
        assert len(attempts(db, "cartpole", versions)) == 3
        (loomrl_home / "attempts" / "cartpole.json").unlink()
        delete_attempts(db, kept)
        with pytest.raises(ArtifactError, match=r"lacks the attempts of .*version 3 \(run late\): the end") as told:
            record_attempt(db, "cartpole", case_of("d"), SETTINGS, "run", versions)
        assert ("version 2 (run early)" in str(told.value)) == (kept == 0)


def test_what_was_changed_or_is_missing_is_found(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoomDB.open() as db:
        numbers(db, "a", "b", "c")
        events = db.events(KIND)
        monkeypatch.setattr(db, "events", lambda _: [events[0], events[2]])
        with pytest.raises(ArtifactError, match="one is missing"):
            attempts(db, "cartpole")
        forged = events[1].data["envelope"] | {"payload": events[0].data["envelope"]["payload"]}
        changed = events[1].model_copy(update={"data": {"policy": "cartpole", "envelope": forged}})
        monkeypatch.setattr(db, "events", lambda _: [events[0], changed])
        with pytest.raises(ArtifactError):
            attempts(db, "cartpole")


# --- the error is spent ---


def test_what_is_no_attempt_is_named_and_hinders_no_other_policy(loomrl_home: Path) -> None:
    with LoomDB.open() as db:
        assert numbers(db, "a") == [1]
        db.record_event(KIND, {})
        db.record_event(KIND, {"policy": "hopper", "envelope": {}})
        assert numbers(db, "b") == [2]
        with pytest.raises(ArtifactError, match="hopper: an attempt in LoomDB is none, it was changed"):
            attempts(db, "hopper")


def test_what_stands_in_the_place_of_the_next_attempt_is_not_waited_for(loomrl_home: Path) -> None:
    with LoomDB.open() as db:
        (number,) = numbers(db, "a")
        last = attempts(db, "cartpole")[-1].digest
        db.add_event("x", {}, f"{KIND} of cartpole after {last}")
        with pytest.raises(ArtifactError, match=f"takes no attempt after the {number} it has"):
            numbers(db, "b")


def test_levels_sum_to_alpha() -> None:
    assert [level(0.06, number) for number in (1, 2, 3)] == pytest.approx([0.03, 0.01, 0.005])
    assert sum(level(0.05, number) for number in range(1, 100_000)) == pytest.approx(0.05, rel=1e-4)


def test_the_same_policy_on_another_evaluation_is_another_attempt(loomrl_home: Path) -> None:
    with LoomDB.open() as db:
        again = [case_of("a").model_copy(update={"evaluation_digest": name}) for name in ("e", "f", "e")]
        assert [record_attempt(db, "cartpole", case, SETTINGS, "run").number for case in again] == [1, 2, 1]


def test_an_attempt_from_before_evaluations_counted_stands_as_it_was_signed(loomrl_home: Path) -> None:
    with LoomDB.open() as db:
        record_attempt(db, "cartpole", case_of("a"), SETTINGS, "run")
        (newest,) = attempts(db, "cartpole")
        old = newest.model_copy(update={"evaluation_digest": None, "policy": "hopper"})
        assert b"evaluation" not in old.to_bytes()
        data = {"policy": "hopper", "envelope": sign_envelope(old.to_bytes(), PAYLOAD_TYPE).to_json()}
        db.add_event(KIND, data, "the only one")
        assert attempts(db, "hopper") == [old]
        assert record_attempt(db, "hopper", case_of("a"), SETTINGS, "run").number == 1
        assert record_attempt(db, "hopper", case_of("b"), SETTINGS, "run").previous == old.digest


@pytest.mark.parametrize("kept", [0, 1])
def test_attempts_that_were_deleted_from_the_end_are_missed(loomrl_home: Path, kept: int) -> None:
    with LoomDB.open() as db:
        assert numbers(db, "a", "b", "c") == [1, 2, 3]
        delete_attempts(db, kept)
        with pytest.raises(ArtifactError, match=r"LoomDB lacks attempt 3 of run run.*restore LoomDB"):
            numbers(db, "d")


def test_a_claim_is_held_to_the_level_of_its_attempt() -> None:
    case = case_of("a", claim(0.01), claim(0.04, mandatory=False), claim(None))
    assert short_of(case, 1) == []
    (told,) = short_of(case, 2)
    # 0.05 / 6 is less than 0.01; what attempt 3 is held to, 0.05 / 12, takes 448 * log(0.05 / 12) / log(0.01) episodes.
    assert told == (
        "limit may be wrong with probability 0.01; attempt 3 is held to 0.00417, which takes about 534 samples "
        "like its 448"
    )


def test_a_p_value_of_a_mean_can_be_as_small_as_a_late_attempt_demands() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(0.0, 1.0, 400)
    after = before + rng.normal(0.6, 1.0, 400)  # the fall of the mean is 12 standard errors below the limit of 0
    assert paired_p_below(before, after, 0.0, 2_000, rng) <= level(0.05, 50)
    assert paired_p_below(np.ones(50), np.ones(50), 0.5, 2_000, rng) <= level(0.05, 50)
    is_even = paired_p_below(before, before + rng.normal(0.0, 1.0, 400), 0.0, 2_000, rng)
    assert is_even > 0.01


def test_the_page_says_how_many_clean_episodes_attempts_take() -> None:
    page = (project_root() / "docs" / "safety.md").read_text()
    rows = re.findall(r"^\| (\d) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert [int(row[0]) for row in rows] == [1, 2, 3]
    for limits, *counts in (map(int, row) for row in rows):
        for count, error in zip(counts, [0.05, *(level(0.05, number) for number in (1, 2, 3, 4))], strict=True):
            passes = [limits * binomial_p_below(0, episodes, 0.01) <= error for episodes in (count - 1, count)]
            assert passes == [False, True]


def some_passes(limit: float, episodes: int, levels: list[float]) -> float:
    """The probability that one of as many policies as levels passes, each at its limit exactly."""
    p_values = np.array([binomial_p_below(failed, episodes, limit) for failed in range(episodes + 1)])
    likely = binom.pmf(np.arange(episodes + 1), episodes, limit)
    return float(1.0 - np.prod([1.0 - likely[p_values <= one].sum() for one in levels]))


def test_the_page_says_how_often_one_of_20_passes() -> None:
    page = (project_root() / "docs" / "safety.md").read_text()
    (found,) = re.findall(
        r"without spending in (\S+) % of rows, .* episodes; with it in (\S+) %, and over .* at most (\S+) %,",
        page.replace("\n", " "),
    )
    spent = [level(0.05, number) for number in range(1, 21)]
    most = max(some_passes(limit, count, spent) for limit in (0.01, 0.05) for count in range(400, 5_001, 100))
    exact = [some_passes(0.01, 672, [0.05] * 20), some_passes(0.01, 672, spent), most]
    assert [float(one) for one in found] == [round(100 * exact[0]), round(100 * exact[1], 1), round(100 * exact[2], 1)]


def test_the_page_says_how_often_losses_of_more_than_all_are_not_seen_and_pass() -> None:
    page = (project_root() / "docs" / "safety.md").read_text().replace("\n", " ")
    (found,) = re.findall(r"in 5 % of the episodes, (\d+) % of first attempts .* in 1 % of them, (\d+) %\.", page)
    assert [int(one) for one in found] == [round(100 * 0.95**64), round(100 * 0.99**64)]
    assert p_by_losses(0.1, 0)[0] == pytest.approx(0.9**64, rel=0.5)
    assert p_by_losses(0.1, 0)[0] <= level(0.05, 1)


def p_by_losses(limit: float, most: int) -> Floats:
    """P-values of a fall by more than `limit` of the return, where 0, 1, ... of 64 episodes lost all of it."""
    before = np.full(64, 100.0)
    after = [np.where(np.arange(64) < lost, 0.0, 100.0) for lost in range(most + 1)]
    return np.array([paired_p_below(before, one, 100.0 * limit, 20_000, np.random.default_rng(0)) for one in after])


def test_where_episodes_lose_all_or_nothing_a_p_value_of_their_mean_is_the_exact_one() -> None:
    exact = [binomial_p_below(lost, 64, 0.1) for lost in range(6)]
    assert p_by_losses(0.1, 5) == pytest.approx(exact, rel=0.1, abs=1e-3)


def test_a_loss_that_is_too_rare_to_be_seen_seldom_passes_however_many_are_tried() -> None:
    """All is lost in exactly as many episodes as is not allowed: in most rows some policy shows few losses or none."""
    lost = np.minimum(np.random.default_rng(1).binomial(64, 0.1, (20_000, 20)), 12)
    levels = np.array([level(0.05, number) for number in range(1, 21)])
    passed = p_by_losses(0.1, 12)[lost] <= levels
    assert passed.any(axis=1).mean() <= 0.05


def test_retraining_until_something_passes_seldom_passes_what_is_exactly_at_its_limit(loomrl_home: Path) -> None:
    """4,000 people, each with 20 policies that fail exactly as often as is not allowed. At alpha each, 64 % would."""
    rng, limit, episodes, alpha = np.random.default_rng(0), 0.05, 400, 0.05
    failures = rng.binomial(episodes, limit, (4_000, 20))
    p_values = np.array([binomial_p_below(count, episodes, limit) for count in range(failures.max() + 1)])[failures]
    levels = np.array([level(alpha, number) for number in range(1, 21)])
    passed = (p_values <= levels).any(axis=1).mean()
    assert passed <= alpha
    assert (p_values <= alpha).any(axis=1).mean() > 5 * alpha  # what it would be without
    # The rule itself says the same as the array.
    first = [bool(short_of(case_of("a", claim(p)), number)) for number, p in enumerate(p_values[0], start=1)]
    assert first == list(p_values[0] > levels)
