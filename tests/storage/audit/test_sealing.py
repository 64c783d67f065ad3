"""Observations at rest: unreadable without the key, whole with it, and the chain verified either way."""

import json
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from loomrl.errors import ArtifactError, ConfigError
from loomrl.promotion.comparison.window import read_window
from loomrl.storage.audit.compaction import compact
from loomrl.storage.audit.history import join, read_lines, records
from loomrl.storage.audit.log import AuditLog, AuditUnwritable
from loomrl.storage.audit.records import decisions, digest, expand, record
from loomrl.storage.audit.sealing import Sealer, opened
from loomrl.storage.audit.segments import checked_records, segments
from loomrl.storage.audit.verification import verify_chain
from loomrl.system.security.encryption import KEYS, Keyring, new_entry
from tests.support.live import play

OLD, NEW = new_entry("old"), new_entry("new")
OBSERVED = np.array([[0.1, -0.0, 3e38], [1.0, 2.0, -3.5]], np.float32)


@pytest.fixture(autouse=True)
def _home(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS, OLD)


def write(log: AuditLog) -> None:
    """A decision, and one record of two."""
    one = record("decision", decision_id=None, observation=OBSERVED[0], observation_digest=digest(OBSERVED[0]))
    shared = {"count": 2, "dtypes": {"observation": "float32", "action": "int64"}}
    columns = {"observation": OBSERVED, "action": np.array([0, 1]), "value": [1.0, 2.0], "agent_id": ["a", "b"]}
    log.append([one, decisions(shared, columns)])


def observed() -> list[tuple[object, object]]:
    return [(one["observation"], one["observation_digest"]) for one in records() if one["kind"] == "decision"]


def test_a_log_reads_the_same_sealed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog("cartpole")
    write(log)
    log.close()
    sealed = observed()
    data = segments(log.folder)[0].read_bytes()
    written = b64encode(OBSERVED.tobytes())  # as the record of several holds it
    assert b"3e+38" not in data
    assert written not in data
    assert digest(OBSERVED[0]).encode() not in data
    monkeypatch.delenv(KEYS)
    plain = AuditLog("plain")
    write(plain)
    plain.close()
    assert b"3e+38" in segments(plain.folder)[0].read_bytes()
    assert written in segments(plain.folder)[0].read_bytes()
    assert [one for one in records("plain") if one["kind"] == "open"][0]["sealed_with"] is None
    found = [(one["observation"], one["observation_digest"]) for one in records("plain") if one["kind"] == "decision"]
    assert sealed == found
    assert [np.float32(observation).tobytes() for observation, _ in found] == [
        OBSERVED[row].tobytes() for row in (0, 0, 1)
    ]


def test_without_the_key_the_chain_is_verified_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog("cartpole", segment_bytes=1_000)
    write(log)
    write(log)
    log.close()
    monkeypatch.setenv(KEYS, NEW)
    assert verify_chain(log.folder).intact
    for entry in join(records()):
        assert (entry["observation"]["key"], entry["observation_digest"]) == ("old", None)
    assert [one["agent_id"] for one in records() if one.get("row") is not None] == ["a", "b"] * 2
    compact(log.folder)
    assert verify_chain(log.folder).intact
    assert [one["value"] for one in records() if one.get("row") is not None] == [1.0, 2.0] * 2


def test_keys_are_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    for keys in (OLD, f"{NEW},{OLD}"):
        monkeypatch.setenv(KEYS, keys)
        log = AuditLog("cartpole")
        write(log)
        log.close()
    assert [one["sealed_with"] for one in records() if one["kind"] == "open"] == ["old", "new"]
    first, second = observed()[:3], observed()[3:]
    assert first == second
    monkeypatch.setenv(KEYS, NEW)
    assert [isinstance(observation, dict) for observation, _ in observed()] == [True] * 3 + [False] * 3


def test_who_needs_the_numbers_is_told_which_key_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog("cartpole")
    play(log, "e", [0.1, 0.2])
    log.close()
    (episode,) = read_window("cartpole", {}, []).episodes
    assert episode.observations[1] == [0.0, 0.0, 0.2, 0.0]
    lines = read_lines(log.folder, -1, 1, ("decision",))
    assert json.loads(lines[0])["observation"] == [0.0, 0.0, 0.1, 0.0]
    monkeypatch.setenv(KEYS, NEW)
    with pytest.raises(ConfigError, match=f"sealed with the key 'old', which is not among {KEYS}"):
        read_window("cartpole", {}, [])


@given(
    arrays.arrays(
        st.sampled_from([np.dtype(name) for name in ("float32", "float64", "int64", "uint8")]),
        arrays.array_shapes(min_dims=0, max_dims=3, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
def test_whatever_is_observed_comes_back(values: np.ndarray) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEYS, OLD)
        entry = {"observation": values[()], "observation_digest": digest(values), "sequence": 3}
        back = opened(json.loads(json.dumps(Sealer(ring()).seal(entry))))
    assert back["observation_digest"] == digest(values)
    assert np.asarray(back["observation"], values.dtype).tobytes() == values.tobytes()


def ring() -> Keyring:
    from loomrl.system.security.encryption import keyring

    found = keyring()
    assert found is not None
    return found


def test_no_nonce_is_used_twice_under_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog("cartpole", segment_bytes=3_000)

    def short_write(handle: int, data: bytes) -> int:
        return 10

    for number in range(12):
        if number % 3 == 2:
            with monkeypatch.context() as patch:
                patch.setattr("os.write", short_write)
                with pytest.raises(AuditUnwritable):
                    write(log)
        write(log)
    log.close()
    used = [
        (place["salt"], place["nonce"])
        for path in segments(log.folder)
        for entry in checked_records(path)
        if (place := (entry.get("shared") or entry).get("observation"))
    ]
    assert len(set(used)) == len(used) == 24
    assert len({salt for salt, _ in used}) > 2
    assert max(nonce for _, nonce in used) >= 5  # what was not written has used up its own


@pytest.mark.parametrize("change", ["data", "place", "salt"])
def test_what_was_changed_or_moved_does_not_open(change: str) -> None:
    entry = Sealer(ring()).seal({"observation": OBSERVED[0], "sequence": 7, "kind": "decision"})
    sealed = entry["observation"]
    if change == "data":
        other = "A" if sealed["sealed"][0] != "A" else "B"
        entry["observation"] = sealed | {"sealed": other + sealed["sealed"][1:]}
    elif change == "place":
        entry["sequence"] = 8
    else:
        entry["observation"] = sealed | {"salt": "AAAA" + sealed["salt"][4:]}
    with pytest.raises(ArtifactError, match="cannot be opened: it was changed"):
        list(expand(entry))
