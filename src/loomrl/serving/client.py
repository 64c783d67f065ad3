"""Small typed clients of the policy server: `PolicyClient`, and `AsyncPolicyClient` for programs of many agents."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx
import numpy as np
import orjson
from numpy.typing import ArrayLike

from loomrl.errors import ConfigError, ServiceError
from loomrl.system.http.trust import trusted

_JSON = {"Content-Type": "application/json"}
_WRONGLY_ASKED = (400, 404, 405, 413, 415, 422)


class Refused(ServiceError):
    """The server answered, but not with what was asked for. `status` is its HTTP status.

    `retry_after_seconds`: when to ask again, None where the server does not say. `not_recorded`: of a batch of feedback
    of which several workers recorded a part, the places of the rest; None in all other cases.
    """

    def __init__(
        self,
        message: str,
        status: int,
        retry_after_seconds: float | None = None,
        not_recorded: Sequence[int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after_seconds, self.not_recorded = status, retry_after_seconds, not_recorded


class WronglyAsked(Refused):
    """The server cannot make sense of what was asked, or has no such thing: another order is needed, not another
    try."""

    exit_code = ConfigError.exit_code


@dataclass(frozen=True)
class Decision:
    """What an agent is to do, and how that came about.

    Attributes:
        value: what the policy expects to come; None where a person named the action.
        exploration: whether the action was drawn at random.
        propensity: the probability, or density, that the action had.
        override: the override that decided; None where none did.
        limited: always False: what the rate limit refuses is not decided.
    """

    decision_id: str
    action: Any  # int, or a list of floats
    policy: str
    version: str
    value: float | None
    exploration: bool
    propensity: float
    role: str  # who decided: champion, split, fallback, kill_switch, override
    assignment_probability: float  # that the split deals an agent to this version
    override: dict[str, Any] | None
    limited: bool
    shield: dict[str, Any] | None = None  # what the policy chose, where the shield took another action


@dataclass(frozen=True)
class Ask:
    """One agent's request for a decision, as `decide_many` takes it."""

    agent_id: str
    observation: ArrayLike
    episode_id: str | None = None
    explore: bool = False
    request_id: str | None = None  # asked again under it, also after a crash, it gets the decision it had


@dataclass(frozen=True)
class Outcome:
    """What followed a decision (reward, cost, end of the episode), as `feedback_many` takes it. `cost` None: it has
    none.
    """

    decision_id: str
    reward: float
    terminated: bool = False
    truncated: bool = False
    cost: float | None = None


class PolicyClient:
    """Keeps one connection to a policy server. Every method that asks raises Refused, a ServiceError, where the server
    refuses, with its own sentence, and ServiceError where it cannot be reached or does not answer in time.

    `token` says who asks; default `$LOOMRL_TOKEN`, else `$LOOMRL_OPERATOR_TOKEN`. What is no JSON raises ConfigError.
    """

    def __init__(self, url: str, token: str | None = None, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url, headers=_headers(token), timeout=timeout_seconds, trust_env=False, verify=trusted()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the HTTP connection; the client cannot be used afterwards."""
        self._http.close()

    def decide(
        self,
        agent_id: str,
        observation: ArrayLike,
        episode_id: str | None = None,
        explore: bool = False,
        request_id: str | None = None,
    ) -> Decision:
        """Ask what one agent is to do about one observation (*obs). The other arguments are as in `Ask`."""
        ask = Ask(agent_id, observation, episode_id, explore, request_id)
        return _decision(self._send("POST", "/decide", _ask(ask)))

    def decide_many(self, asks: Sequence[Ask]) -> list[Decision]:
        """Ask for several agents in one request; all are answered, in their order, or none."""
        answer = self._send("POST", "/decide", {"requests": [_ask(ask) for ask in asks]})
        return [_decision(entry) for entry in answer["decisions"]]

    def feedback(
        self,
        decision_id: str,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        cost: float | None = None,
    ) -> None:
        """Say what came of a decision. It can be said once: a second time is refused."""
        self.feedback_many([Outcome(decision_id, reward, terminated, truncated, cost)])

    def feedback_many(self, outcomes: Sequence[Outcome]) -> None:
        """Say what came of several decisions; all are recorded or none.

        Of a server with several workers each records all of its own or none: what is left is `not_recorded` of the
        Refused.
        """
        self._send("POST", "/feedback", {"feedback": [vars(outcome) for outcome in outcomes]})

    def is_ready(self) -> bool:
        """Whether the server has a champion that can decide; False also where the server cannot be reached."""
        try:
            return self._http.get("/v2/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def status(self) -> dict[str, Any]:
        """The body of `GET /status`: roles, versions, controls, chains and refusals of the server."""
        return self._send("GET", "/status")

    def shadow_records(
        self, after: int = -1, after_mirror: int = -1, worker: int | None = None
    ) -> list[dict[str, Any]]:
        """The next audit records of decisions and of their mirrors (`kind` is `shadow`); empty at the end.

        Each has sequences of its own: `after` is that of the last decision, `after_mirror` that of the last mirror. Of
        a server with several workers one is named.
        """
        path = f"/shadow/records?after={after}&after_mirror={after_mirror}"
        path += "" if worker is None else f"&worker={worker}"
        return [orjson.loads(line) for line in self._request("GET", path, None).content.splitlines()]

    def set_override(self, **fields: Any) -> dict[str, Any]:
        """Pin an `action`, a `version` or the `fallback`: see `Override`; `expires_in_seconds` ends it.

        Returns the override as it is in force, with its `id`; where the version that it pins is not loaded yet,
        `not_loaded` says why.
        """
        return self._send("POST", "/override", fields)

    def clear_override(self, override_id: str | None = None) -> list[str]:
        """Lift one override, or all (None); returns their ids. One that is not in force is refused."""
        lifted: list[str] = self._send("DELETE", f"/override/{override_id}" if override_id else "/override")["lifted"]
        return lifted

    def overrides(self) -> list[dict[str, Any]]:
        """The overrides in force, each as the JSON object that the server keeps of it."""
        found: list[dict[str, Any]] = self._send("GET", "/override")["overrides"]
        return found

    def plan(self) -> dict[str, Any]:
        """The plan in force as `plan`, its `revision`, and as `kill_switch` who turned it on and why, None while it is
        off.
        """
        return self._send("GET", "/plan")

    def set_plan(self, **fields: Any) -> dict[str, Any]:
        """Replace the plan: see `loomrl.serving.controls.plan.Plan`. With a `revision`, only where it is still that
        one; else it is refused. Returns what is in force then, as `plan` does; where versions that it names are not
        loaded yet, `not_loaded` says why, by version.
        """
        return self._send("PUT", "/plan", fields)

    def set_kill_switch(self, on: bool, person: str, reason: str) -> dict[str, Any]:
        """Have the fallback decide everything that no override does, or the policy again. Returns what is in force
        then, as `plan` does.
        """
        return self._send("PUT", "/kill-switch", {"on": on, "person": person, "reason": reason})

    def roll_back(self, version: str, reason: str) -> dict[str, Any]:
        """Take the champion, this version, back: the registry names the one before it.

        Returns as `message` what was done, and as `champion` the version that is champion now.
        """
        return self._send("POST", "/rollback", {"version": version, "reason": reason})

    def refresh(self, policy: str) -> dict[str, Any]:
        """Have the server load what the registry's aliases name now, instead of at its next look. Returns the `roles`
        then; a version that cannot be loaded is refused.
        """
        return self._send("POST", f"/v2/repository/models/{policy}/load")

    def infer(
        self, policy: str, observations: ArrayLike, version: str | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Open Inference Protocol V2 inference on observations (N, *obs), each a decision; returns the protocol's
        response.

        Without a `version` the champion is asked. `parameters` are the request's, such as `agent_id`.
        """
        place = _model_path(policy, version)
        tensor = _tensor(self._send("GET", place), observations)
        return self._send("POST", f"{place}/infer", {"inputs": [tensor], "parameters": parameters})

    def _send(self, method: str, path: str, document: Any = None) -> dict[str, Any]:
        answer: dict[str, Any] = orjson.loads(self._request(method, path, document).content)
        return answer

    def _request(self, method: str, path: str, document: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **_content(document))
        except httpx.TransportError as error:
            raise _unreachable(self.url, error) from error
        if response.is_error:
            raise _refused(response)
        return response


class AsyncPolicyClient:
    """What agents need of `PolicyClient`, for asyncio: one thread has the requests of many agents under way at once.
    Every method that asks raises Refused, a ServiceError, where the server refuses, and ServiceError where it cannot
    be reached.

    `token` says who asks, and what is no JSON raises ConfigError, as with `PolicyClient`.
    """

    def __init__(self, url: str, token: str | None = None, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=_headers(token), timeout=timeout_seconds, trust_env=False, verify=trusted()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all HTTP connections; the client cannot be used afterwards."""
        await self._http.aclose()

    async def decide(
        self,
        agent_id: str,
        observation: ArrayLike,
        episode_id: str | None = None,
        explore: bool = False,
        request_id: str | None = None,
    ) -> Decision:
        """Ask what one agent is to do about one observation (*obs). The other arguments are as in `Ask`."""
        ask = Ask(agent_id, observation, episode_id, explore, request_id)
        return _decision(await self._send("POST", "/decide", _ask(ask)))

    async def decide_many(self, asks: Sequence[Ask]) -> list[Decision]:
        """Ask for several agents in one request; all are answered, in their order, or none."""
        answer = await self._send("POST", "/decide", {"requests": [_ask(ask) for ask in asks]})
        return [_decision(entry) for entry in answer["decisions"]]

    async def feedback(
        self,
        decision_id: str,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        cost: float | None = None,
    ) -> None:
        """Say what came of a decision. It can be said once: a second time is refused."""
        await self.feedback_many([Outcome(decision_id, reward, terminated, truncated, cost)])

    async def feedback_many(self, outcomes: Sequence[Outcome]) -> None:
        """Say what came of several decisions; all are recorded or none.

        Of a server with several workers each records all of its own or none: what is left is `not_recorded` of the
        Refused.
        """
        await self._send("POST", "/feedback", {"feedback": [vars(outcome) for outcome in outcomes]})

    async def is_ready(self) -> bool:
        """Whether the server has a champion that can decide; False also where the server cannot be reached."""
        try:
            return (await self._http.get("/v2/health/ready")).status_code == 200
        except httpx.TransportError:
            return False

    async def infer(
        self, policy: str, observations: ArrayLike, version: str | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Open Inference Protocol V2 inference on observations (N, *obs), each a decision; returns the protocol's
        response.

        Without a `version` the champion is asked. `parameters` are the request's, such as `agent_id`.
        """
        place = _model_path(policy, version)
        tensor = _tensor(await self._send("GET", place), observations)
        return await self._send("POST", f"{place}/infer", {"inputs": [tensor], "parameters": parameters})

    async def _send(self, method: str, path: str, document: Any = None) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, **_content(document))
        except httpx.TransportError as error:
            raise _unreachable(self.url, error) from error
        if response.is_error:
            raise _refused(response)
        answer: dict[str, Any] = orjson.loads(response.content)
        return answer


def _headers(token: str | None) -> dict[str, str]:
    """Of every request. Answers come as they are: packing them would cost the server more than sending them."""
    if token is None:
        token = os.environ.get("LOOMRL_TOKEN") or os.environ.get("LOOMRL_OPERATOR_TOKEN", "")
    return {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}


def _content(document: Any) -> dict[str, Any]:
    return {} if document is None else {"content": _encode(document), "headers": _JSON}


def _unreachable(url: str, error: httpx.TransportError) -> ServiceError:
    return ServiceError(f"the policy server at {url} cannot be reached: {error!r}; start one: `loomrl serve`")


def _encode(document: Any) -> bytes:
    try:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise ConfigError(f"cannot be sent as JSON: {error}") from error


def _ask(ask: Ask) -> dict[str, Any]:
    observation = np.asarray(ask.observation, order="C")
    shown = observation if observation.ndim else observation.item()  # orjson knows no array of a single number
    fields = {"agent_id": ask.agent_id, "episode_id": ask.episode_id, "observation": shown}
    return {**fields, "explore": ask.explore, **({} if ask.request_id is None else {"request_id": ask.request_id})}


def _decision(entry: dict[str, Any]) -> Decision:
    return Decision(**{name: entry[name] for name in Decision.__dataclass_fields__ if name in entry})


def _model_path(policy: str, version: str | None) -> str:
    place = f"/v2/models/{quote(policy, safe='')}"
    return place if version is None else f"{place}/versions/{quote(version, safe='')}"


def _tensor(metadata: dict[str, Any], observations: ArrayLike) -> dict[str, Any]:
    """Observations (N, *obs) as the input that a model's metadata describes."""
    (described,) = metadata["inputs"]
    tensor = np.asarray(observations)
    return {**described, "shape": list(tensor.shape), "data": tensor.reshape(-1).tolist()}


def _refused(response: httpx.Response) -> Refused:
    told: dict[str, Any] = {}
    try:
        told = orjson.loads(response.content)
        message = told["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = response.text[:300]
    wait, left = response.headers.get("Retry-After"), told.get("not_recorded") if isinstance(told, dict) else None
    refused = WronglyAsked if response.status_code in _WRONGLY_ASKED else Refused
    return refused(f"{response.status_code}: {message}", response.status_code, float(wait) if wait else None, left)
