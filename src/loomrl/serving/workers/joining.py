"""The answers of several workers as one."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from loomrl.system.http.asgi import Response, as_json

Answers = Mapping[int, Response | None]  # by worker; None for one that did not answer
Join = Callable[[Answers, Response], Response]  # of those, and of the worker that was asked


def decisions(rows: Sequence[Sequence[int]], answers: Sequence[Response]) -> Response:
    """The decisions of several workers in one response, in the order they were asked for; the first answer that is a
    refusal, where there is one. `rows` are the places in the request that each of the answers is for.
    """
    if (refused := failed(answers)) is not None:
        return refused
    found: dict[int, Any] = {}
    for places, answer in zip(rows, answers, strict=True):
        found |= zip(places, orjson.loads(answer.body)["decisions"], strict=True)
    return as_json({"decisions": [found[row] for row in sorted(found)]})


def feedback(rows: Sequence[Sequence[int]], answers: Sequence[Response]) -> Response:
    """The response that says how many entries of feedback are on record. Where not all are, it is the first refusal,
    with the places of those that are not as `not_recorded`. `rows` are the places that each of the answers is for.
    """
    recorded = sum(len(places) for places, answer in zip(rows, answers, strict=True) if answer.status < 400)
    if (refused := failed(answers)) is None:
        return as_json({"recorded": recorded})
    missing = sorted(
        row for places, answer in zip(rows, answers, strict=True) if answer.status >= 400 for row in places
    )
    told = {**orjson.loads(refused.body), "recorded": recorded, "not_recorded": missing}
    return Response(orjson.dumps(told), refused.status, headers=refused.headers)


def status(answers: Answers, asked: Response) -> Response:
    """The state of the worker that was asked, and as `workers` that of each, or the `error` that it does not answer."""
    states = [
        {"worker": index} | ({"error": "it does not answer"} if answer is None else orjson.loads(answer.body))
        for index, answer in sorted(answers.items())
    ]
    return as_json({**orjson.loads(asked.body), "workers": states})


def metrics(answers: Answers, asked: Response) -> Response:
    """All workers' metrics as Prometheus' text, each sample with the label `worker`; `loomrl_worker_up` says who
    answered.
    """
    joined: dict[str, Metric] = {}
    up = Metric("loomrl_worker_up", "1 for a worker that answers", "gauge")
    for index, answer in sorted(answers.items()):
        label = {"worker": str(index)}
        up.add_sample(up.name, label, float(answer is not None))
        for family in () if answer is None else text_string_to_metric_families(answer.body.decode()):
            whole = joined.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                whole.samples.append(sample._replace(labels={**sample.labels, **label}))
    return Response(generate_latest(_Collected([up, *joined.values()])), content_type=asked.content_type)


class _Collected:
    """What `generate_latest` takes for a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def statistics(answers: Answers, _asked: Response) -> Response:
    """Triton's statistics, summed over the workers that answered."""
    by_version: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for answer in answers.values():
        for found in () if answer is None else orjson.loads(answer.body)["model_stats"]:
            by_version[found["version"]].append(found)
    return as_json({"model_stats": [_summed(by_version[version]) for version in sorted(by_version)]})


def dashboard(answers: Answers, asked: Response) -> Response:
    """What the page shows: the state of the worker that was asked, and what all of them counted."""
    told = [orjson.loads(answer.body) for _, answer in sorted(answers.items()) if answer is not None]
    guarded = [one["monitors"] for one in told if one["monitors"] is not None]
    joined = {
        "started": min(one["started"] for one in told),
        "monitors": guarded[0] if guarded else {"versions": {}},
        "totals": _added([one["totals"] for one in told]),
        "history": _seconds([point for one in told for point in one["history"]], min(one["time"] for one in told)),
    }
    return replace(asked, body=orjson.dumps({**orjson.loads(asked.body), **joined}))


def _seconds(points: Sequence[Any], now: float) -> list[Any]:
    """One point for each second that all workers have counted, dated at its end."""
    found: dict[int, list[Any]] = defaultdict(list)
    for point in points:
        found[int(point["time"])].append(point)
    whole = sorted(second for second in found if second < int(now) - 1)
    return [{**_added(found[second]), "time": second + 1.0, "seconds": 1.0} for second in whole]


def _added(values: Sequence[Any]) -> Any:
    """Counters, nested alike as far as they are there."""
    if not isinstance(values[0], dict):
        return sum(values)
    names = dict.fromkeys(name for value in values for name in value)
    return {name: _added([value[name] for value in values if name in value]) for name in names}


def _summed(found: list[dict[str, Any]]) -> dict[str, Any]:
    """One version's numbers of all workers; batches belong together by their size."""
    total = {
        name: _added([one[name] for one in found]) for name in ("inference_count", "execution_count", "inference_stats")
    }
    sizes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for batch in (batch for one in found for batch in one["batch_stats"]):
        sizes[batch["batch_size"]].append({name: value for name, value in batch.items() if name != "batch_size"})
    batches = [{"batch_size": size, **_added(sizes[size])} for size in sorted(sizes)]
    last = max(one["last_inference"] for one in found)
    return {**found[0], **total, "last_inference": last, "batch_stats": batches}


def failed(answers: Iterable[Response]) -> Response | None:
    """The first response with a status of 400 or more; None where there is none."""
    return next((answer for answer in answers if answer.status >= 400), None)
