"""A small typed client of a hub, for environments and trainers of one's own: `HubClient`.

Unmodified Atropos environments and trainers need none of this.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from loomrl.language.connection import ServiceConnection, ServiceRefused
from loomrl.language.trajectory.state.fragments import compress, gzip_of

_MIN_PACKED_BYTES = 1_000
_TIMEOUT_SECONDS = 30.0
ScoredGroup = Mapping[str, Any]


class HubRefused(ServiceRefused):
    """The hub answered that a request is wrong. `status` is its HTTP status."""


@dataclass(frozen=True)
class LeasedBatch:
    """Groups to train on, and what to acknowledge afterwards. A batch that comes again has the id it had.

    `groups` have the keys of `loomrl.language.trajectory.wire.ScoredGroup`. For each of them, in the same order,
    `policy_versions` says which policy made it (None where its environment did not say), and `received_steps` the
    hub's step when it came: the trainer's `starting_step`, and one more for each batch formed since.
    """

    id: int
    groups: list[dict[str, Any]]
    policy_versions: list[int | None]
    received_steps: list[int]


class HubClient:
    """HTTP client of a hub, with retries: a hub that restarts, or is full for a moment, costs time alone. Every request
    raises ServiceError when the hub was not reached, or failed or was full, for `patience_seconds`, and HubRefused, a
    ServiceError, when it answers that the request is wrong.

    A group is accepted once however often it has to be sent. `token` is that of `LOOMRL_HUB_TOKEN` where none is given.
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", *, token: str | None = None, patience_seconds: float = 60.0):
        self._connection = ServiceConnection("hub", url, token, patience_seconds, _TIMEOUT_SECONDS, HubRefused)

    def close(self) -> None:
        """Close all HTTP connections to the hub; later calls raise RuntimeError."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- environments ---------------------------------------------------------------------------------------------

    def register_environment(
        self,
        name: str,
        *,
        group_size: int,
        max_token_length: int,
        weight: float = 1.0,
        minimum: float | None = None,
        poll_seconds: float = 1.0,
    ) -> int:
        """Register an environment; returns its `env_id`, 0 or more. Waits, however long, until a trainer has asked for
        a batch, and asks the hub every `poll_seconds`.

        Args:
            name: as the environment calls itself; several may have the same.
            group_size: sequences of a group.
            max_token_length: tokens of its longest sequence.
            weight: the share of batches the hub tells it is proportional to `weight` times `max_token_length`.
            minimum: the share of each batch that it must have, 0 to 1; None: no such share.
            poll_seconds: between two requests.
        """
        body = {
            "desired_name": name,
            "group_size": group_size,
            "max_token_length": max_token_length,
            "weight": weight,
            "min_batch_allocation": minimum,
        }
        while (answer := self._request("POST", "/register-env", body))["status"] != "success":
            time.sleep(poll_seconds)
        return int(answer["env_id"])

    def disconnect_environment(self, env_id: int) -> None:
        """Give up an environment's share of the batches; what it posted is still delivered. An `env_id` that is not
        registered changes nothing."""
        self._request("POST", "/disconnect-env", {"env_id": env_id})

    def environment_status(self, env_id: int) -> dict[str, Any]:
        """The state of an environment's queue and its weight, as
        `loomrl.language.trajectory.api.replies.EnvironmentStatus` lists them. The request also shows the hub that the
        environment is alive.

        Raises:
            HubRefused: where no environment has this id.
        """
        return self._request("GET", "/status-env", {"env_id": env_id})

    def post(self, group: ScoredGroup, *, policy_version: int | None = None) -> dict[str, Any]:
        """Post one group, made by this version of the policy (None: not known). Returns the hub's answer: `status` is
        "received", or "buffered" with the number of buffered sequences as `buffer_size`.

        Raises:
            HubRefused: with status 422 for a group that the hub does not take, 413 for one that is too large.
        """
        return self._post("/scored_data", group, policy_version)

    def post_several(self, groups: Sequence[ScoredGroup], *, policy_version: int | None = None) -> dict[str, Any]:
        """Post several groups, made by this version of the policy (None: not known). The good ones are taken. Returns
        the hub's answer: `groups_processed` counts them, and `rejected`, where there is one, lists index and errors of
        each of the others.

        Raises:
            HubRefused: with status 422 when no group of them is good.
        """
        return self._post("/scored_data_list", list(groups), policy_version)

    # --- trainers -------------------------------------------------------------------------------------------------

    def register(
        self,
        *,
        batch_size: int,
        max_token_len: int,
        num_steps: int,
        group: str = "",
        project: str = "",
        checkpoint_dir: str = "",
        save_checkpoint_interval: int = 0,
        starting_step: int = 0,
    ) -> None:
        """Register a trainer. The first registration since the hub was reset counts; a later one changes nothing.

        Args:
            batch_size: sequences of a batch.
            max_token_len: tokens of the longest sequence.
            num_steps: training steps, told to environments.
            group: the trainer's group at Weights & Biases.
            project: the trainer's project there.
            checkpoint_dir: where the trainer saves, told to environments.
            save_checkpoint_interval: steps between two checkpoints, told to environments.
            starting_step: the step from which the hub counts batches on.
        """
        fields = {
            "wandb_group": group,
            "wandb_project": project,
            "batch_size": batch_size,
            "max_token_len": max_token_len,
            "checkpoint_dir": checkpoint_dir,
            "save_checkpoint_interval": save_checkpoint_interval,
            "starting_step": starting_step,
            "num_steps": num_steps,
        }
        self._request("POST", "/register", fields)

    def next_batch(self, *, lease_seconds: float = 600.0) -> LeasedBatch | None:
        """The next batch, which is handed out again unless it is acknowledged within `lease_seconds`; None while there
        is none. The first request of a batch lets environments register.

        Raises:
            HubRefused: before a trainer was registered, or for a lease of more than a day.
        """
        found = self._request("GET", f"/batch?lease={lease_seconds}")
        if found.get("status") == "error":
            raise HubRefused(found["message"], 200)
        if found["batch"] is None:
            return None
        return LeasedBatch(found["batch_id"], found["batch"], found["policy_versions"], found["received_steps"])

    def acknowledge(self, batch: LeasedBatch) -> None:
        """Confirm that a batch was trained on; the hub removes it. To do so again changes nothing.

        Raises:
            HubRefused: with status 404 for a batch that the hub did not lease.
        """
        self._request("POST", f"/batch/{batch.id}/ack")

    def set_policy_version(self, version: int) -> None:
        """Tell the hub which policy the trainer has now, a number from 0 on. The hub drops groups whose policy is older
        than its `max_staleness` allows."""
        self._request("POST", "/policy_version", {"version": version})

    def policy_version(self) -> int | None:
        """The policy version that the trainer reported last; None before it did."""
        version: int | None = self._request("GET", "/policy_version")["version"]
        return version

    def status(self) -> dict[str, Any]:
        """The hub's `/hub` document: registration, queue lengths, counts and environments, as
        `loomrl.language.trajectory.api.replies.HubReport` lists them."""
        return self._request("GET", "/hub")

    # --- inside ---------------------------------------------------------------------------------------------------

    def _post(self, path: str, content: Any, policy_version: int | None) -> dict[str, Any]:
        body, headers = orjson.dumps(content), {"Idempotency-Key": uuid.uuid4().hex, "Prefer": "handling=lenient"}
        if policy_version is not None:
            headers["X-Policy-Version"] = str(policy_version)
        if len(body) >= _MIN_PACKED_BYTES:
            body, headers["Content-Encoding"] = gzip_of([compress(body)]), "gzip"
        return self._request("POST", path, body, headers)

    def _request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        answer: dict[str, Any] = self._connection.request(method, path, body, headers)
        return answer
