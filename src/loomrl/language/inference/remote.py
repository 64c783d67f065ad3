"""What the engines behind HTTP have in common: patient requests, and weights handed over so that no one is in doubt.

`update` pauses the engine, hands the weights over, reads back which version is served and goes on. Where that fails and
the engine may hold half of them, it gets those of the version before again; where there are none, it stays paused.
"""

import base64
import os
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import httpx
import numpy as np

from loomrl.errors import ServiceError
from loomrl.language.inference.engine import Completions, InferenceEngine, PauseMode, Prompt, Sampling

TOKEN = "LOOMRL_ENGINE_TOKEN"
_CONNECTIONS = 64  # requests under way at once; more would wait in the engine
_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 5.0  # before asking again; doubles


class SavedPolicy(Protocol):
    """A policy that the engine can read from a folder: its own format, which for vLLM and SGLang is Hugging Face's."""

    def save(self, folder: Path) -> None:
        """Write all files that the engine needs into a folder."""
        ...


class EngineRefused(ServiceError):
    """The engine answered that the request is wrong. `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class EngineConnection:
    """HTTP requests to an engine, with retries while it is not reached or busy.

    Args:
        url: where it is served, without `/v1`.
        token: sent as `Authorization: Bearer`; default: `LOOMRL_ENGINE_TOKEN`.
        patience_seconds: until a request that was not answered fails.
        timeout_seconds: of one answer.
    """

    def __init__(self, url: str, token: str | None, patience_seconds: float, timeout_seconds: float) -> None:
        token = token or os.environ.get(TOKEN)
        self._client = httpx.Client(
            base_url=url.rstrip("/").removesuffix("/v1"),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_seconds, pool=None),
            limits=httpx.Limits(max_connections=_CONNECTIONS),
            trust_env=False,
        )
        self._patience_seconds = patience_seconds

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as JSON; sent again while the engine is not reached or busy, so only for requests that may be
        repeated.

        Raises:
            EngineRefused: when the engine answers that the request is wrong.
            ServiceError: when there is no answer within `patience_seconds`.
        """
        deadline, pause = time.monotonic() + self._patience_seconds, _PAUSE_SECONDS
        while True:
            try:
                return self.request_once(method, path, body)
            except EngineRefused:
                raise
            except ServiceError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def request_once(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as JSON, of a request that is sent once, since it must not be repeated.

        Raises:
            EngineRefused: when the engine answers that the request is wrong.
            ServiceError: when there is no answer, or it is no JSON.
        """
        url = f"{self._client.base_url}{path}"
        try:
            answer = self._client.request(method, path, json=None if body is None else dict(body))
            if 400 <= answer.status_code < 500:
                raise EngineRefused(f"{method} {url}: {answer.status_code} {answer.text[:500]}", answer.status_code)
            if answer.status_code >= 500:
                raise ServiceError(f"{method} {url}: {answer.status_code} {answer.text[:500]}; see the engine's log")
            return answer.json() if answer.content else None
        except httpx.HTTPError as error:
            raise ServiceError(f"{method} {url}: {error or type(error).__name__}; is the engine running?") from error
        except ValueError as error:
            raise ServiceError(f"{method} {url}: the answer is no JSON; is this an inference engine?") from error

    def close(self) -> None:
        """Close all HTTP connections to the engine; later requests fail."""
        self._client.close()


class RemoteEngine(InferenceEngine):
    """An engine behind HTTP.

    Args:
        url: where it is served.
        weights_folder: where weights are written for the engine to read, by the same path. Without one they travel in
            the requests, which the built-in engine alone can take.
        first_weights: a folder with the weights the engine was started with, to go back to when the first update fails.
        token: sent as `Authorization: Bearer`; default: `LOOMRL_ENGINE_TOKEN`.
        patience_seconds: until a request that was not answered fails.
        timeout_seconds: of one answer.
    """

    def __init__(
        self,
        url: str,
        *,
        weights_folder: Path | None = None,
        first_weights: Path | None = None,
        token: str | None = None,
        patience_seconds: float = 60.0,
        timeout_seconds: float = 600.0,
    ) -> None:
        self._connection = EngineConnection(url, token, patience_seconds, timeout_seconds)
        self._temporary = TemporaryDirectory(prefix="loomrl-weights-")
        self._shares_folder = weights_folder is not None
        self._folder = (weights_folder or Path(self._temporary.name)).resolve()
        self._served_folder = first_weights
        self._pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="engine")

    def complete(self, prompts: Sequence[Prompt], *, n: int = 1, sampling: Sampling | None = None) -> list[Completions]:
        """A request for each prompt, which the engine decodes together."""
        wanted = [_of_prompt(sampling or Sampling(), number) for number in range(len(prompts))]
        return list(self._pool.map(self._whole, prompts, repeat(n), wanted))

    def update(self, policy: SavedPolicy, version: int) -> None:
        folder = self._folder / f"version-{version}"
        policy.save(folder)
        before = self.version
        self._pause_once()
        try:
            self._transfer(folder, version)
            self._check_version(version)
        except ServiceError as error:
            self._go_back(error, before)
            raise ServiceError(
                f"version {before} goes on being served, for {version} was not taken: {error}"
            ) from error
        self.resume()
        self._forget(keep=folder)

    def pause(self, mode: PauseMode = "wait") -> None:
        self._connection.request(*self._pause_request(mode))

    def close(self) -> None:
        self._pool.shutdown()
        self._connection.close()
        self._temporary.cleanup()

    @abstractmethod
    def _complete(self, prompt: Prompt, n: int, sampling: Sampling) -> Completions:
        """Completions of one prompt."""

    @abstractmethod
    def _pause_request(self, mode: PauseMode) -> tuple[str, str, Mapping[str, Any] | None]:
        """How the engine is told to pause: method, path and body."""

    @abstractmethod
    def _transfer(self, folder: Path, version: int) -> None:
        """Have the engine take the weights of a folder."""

    def _whole(self, prompt: Prompt, n: int, sampling: Sampling) -> Completions:
        """Completions that no update cut short: asked for again where one did."""
        while True:
            found = self._complete(prompt, n, sampling)
            if all(one.finish_reason != "abort" for one in found.completions):
                return found
            time.sleep(_PAUSE_SECONDS)

    def _pause_once(self) -> None:
        try:
            self._connection.request_once(*self._pause_request("wait"))
        except ServiceError:
            with suppress(ServiceError):  # it may have paused although it did not say so
                self.resume()
            raise

    def _check_version(self, version: int) -> None:
        if (served := self.version) != version:
            raise ServiceError(f"the engine serves version {served} after it was given version {version}")

    def _go_back(self, error: ServiceError, version: int) -> None:
        """Make sure that the version before is served, whole; what an engine refused it did not begin to take.

        Raises:
            ServiceError: when it cannot be known; the engine stays paused.
        """
        if not isinstance(error, EngineRefused):
            self._restore(error, version)
        self.resume()

    def _restore(self, error: ServiceError, version: int) -> None:
        stays_paused = f"what the engine holds is not known, so it stays paused; update it again. {error}"
        if self._served_folder is None:
            raise ServiceError(stays_paused) from error
        try:
            self._transfer(self._served_folder, version)
            self._check_version(version)
        except ServiceError as again:
            raise ServiceError(f"{stays_paused}; going back failed, too: {again}") from again

    def _forget(self, keep: Path) -> None:
        """Remove the weights of the version before, where they were written here."""
        before, self._served_folder = self._served_folder, keep
        if before is not None and before != keep and before.parent == keep.parent:
            rmtree(before, ignore_errors=True)


def _of_prompt(sampling: Sampling, number: int) -> Sampling:
    """With a seed of the prompt's own, where there is one: by the same seed equal prompts would get the same answer."""
    if sampling.seed is None or number == 0:
        return sampling
    (seed,) = np.random.SeedSequence([sampling.seed, number]).generate_state(1, np.uint64)
    return sampling.model_copy(update={"seed": int(seed) >> 1})


def tensors_of(folder: Path) -> list[str]:
    """The content of a folder's safetensors files in base64, in the order of their names."""
    return [base64.b64encode(path.read_bytes()).decode() for path in sorted(folder.glob("*.safetensors"))]


def version_of(answer: object) -> int:
    """A weight version as a number; 0 for weights that were given none."""
    return int(answer) if isinstance(answer, str) and answer.isascii() and answer.isdigit() else 0


def field_of(answer: Any, *names: str | int) -> Any:
    """The value in a JSON answer at a path of keys and indices.

    Raises:
        ServiceError: when there is nothing.
    """
    found = answer
    for name in names:
        try:
            found = found[name]
        except (KeyError, IndexError, TypeError) as error:
            place = ".".join(map(str, names))
            raise ServiceError(
                f"the engine's answer has no {place}: {str(answer)[:200]}; is it of this kind?"
            ) from error
    return found
