"""What became of inference requests, version by version, in the schema of Triton's statistics extension.

https://github.com/triton-inference-server/server, `docs/protocol/extension_statistics.md`. There is neither queue nor
cache here: what arrives together is executed together, and a request is an execution of each policy in it.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_NOTHING = {"count": 0, "ns": 0}


@dataclass(slots=True)
class _Executions:
    """All executions of one version at one batch size; seconds are summed."""

    count: int = 0
    num_requests: int = 0
    input_seconds: float = 0.0  # from the whole request to the policy
    infer_seconds: float = 0.0  # the policy
    output_seconds: float = 0.0  # from its answer until the decisions are on record
    ended: float = 0.0  # `time.perf_counter()` of the last one


@dataclass(slots=True)
class _Failures:
    count: int = 0
    seconds: float = 0.0


class InferenceStatistics:
    """Counters of one server since it started. `count` runs for every request."""

    def __init__(self) -> None:
        self._executions: dict[tuple[str, int], _Executions] = {}  # (version, batch size) -> sums
        self._failures: dict[str, _Failures] = {}

    def count(
        self, version: str, batch_size: int, moments: tuple[float, float, float, float], num_requests: int
    ) -> None:
        """Count one execution whose decisions are on record.

        `moments` are the `time.perf_counter()` at which its first request was whole, the policy was asked and answered,
        and its requests were done with.
        """
        found = self._executions.get((version, batch_size))
        if found is None:
            found = self._executions[version, batch_size] = _Executions()
        started, asked, answered, ended = moments
        found.count += 1
        found.num_requests += num_requests
        found.input_seconds += asked - started
        found.infer_seconds += answered - asked
        found.output_seconds += ended - answered
        found.ended = ended

    def count_failure(self, version: str, seconds: float) -> None:
        """Count one request that was refused, or whose decision could not be recorded."""
        found = self._failures.setdefault(version, _Failures())
        found.count += 1
        found.seconds += seconds

    def versions(self) -> set[str]:
        """Versions that were asked since the server started."""
        return {version for version, _ in self._executions} | self._failures.keys()

    def report(self, policy: str, versions: Iterable[str]) -> dict[str, Any]:
        """The answer to `GET /v2/models/POLICY[/versions/VERSION]/stats`: these versions, sorted as text; zeros for one
        that nobody asked.
        """
        return {"model_stats": [self._describe(policy, version) for version in sorted(versions)]}

    def _describe(self, policy: str, version: str) -> dict[str, Any]:
        batches = {size: found for (name, size), found in sorted(self._executions.items()) if name == version}
        failures = self._failures.get(version, _Failures())
        num_requests = sum(found.num_requests for found in batches.values())
        total = _durations(batches.values())
        spent = sum(duration["ns"] for duration in total.values())
        return {
            "name": policy,
            "version": version,
            "last_inference": _epoch_milliseconds(max((found.ended for found in batches.values()), default=None)),
            "inference_count": sum(size * found.count for size, found in batches.items()),
            "execution_count": sum(found.count for found in batches.values()),
            "inference_stats": {
                "success": {"count": num_requests, "ns": spent},
                "fail": {"count": failures.count, "ns": _nanoseconds(failures.seconds)},
                "queue": {"count": num_requests, "ns": 0},
                **total,
                "cache_hit": _NOTHING,
                "cache_miss": _NOTHING,
            },
            "batch_stats": [{"batch_size": size, **_durations([found])} for size, found in batches.items()],
        }


def _durations(executions: Iterable[_Executions]) -> dict[str, dict[str, int]]:
    found = list(executions)
    seconds = {
        "compute_input": sum(each.input_seconds for each in found),
        "compute_infer": sum(each.infer_seconds for each in found),
        "compute_output": sum(each.output_seconds for each in found),
    }
    count = sum(each.count for each in found)
    return {name: {"count": count, "ns": _nanoseconds(spent)} for name, spent in seconds.items()}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _epoch_milliseconds(moment: float | None) -> int:
    """A `time.perf_counter()` as milliseconds since 1970; 0 for none, as Triton has it."""
    return 0 if moment is None else round((time.time() - time.perf_counter() + moment) * 1e3)
