"""What the engines behind HTTP have in common: patient requests, and weights handed over so that no one is in doubt.

`update` pauses the engine, hands the weights over, reads back which version is served and goes on. Where that fails and
the engine may hold half of them, it gets those of the version before again; where there are none, it stays paused.
"""

import base64
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

import numpy as np

from loomrl.errors import ServiceError
from loomrl.language.connection import CONNECTIONS, ServiceConnection, ServiceRefused
from loomrl.language.inference.engine import Completions, InferenceEngine, PauseMode, Prompt, Sampling

_PAUSE_SECONDS = 0.2  # before asking again for what an update cut short


class SavedPolicy(Protocol):
    """A policy that the engine can read from a folder: its own format, which for vLLM and SGLang is Hugging Face's."""

    def save(self, folder: Path) -> None:
        """Write all files that the engine needs into a folder, which is made where it is not there.

        Raises:
            ArtifactError or OSError: when they cannot be written.
        """
        ...


class EngineRefused(ServiceRefused):
    """The engine answered that the request is wrong. `status` is its HTTP status."""


class RemoteEngine(InferenceEngine):
    """An engine behind HTTP. Every method raises ServiceError when the engine gives no answer within
    `patience_seconds`, fails or answers something else than its kind does, and EngineRefused, a ServiceError, when it
    answers that the request is wrong.

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
        root = url.rstrip("/").removesuffix("/v1")
        self._connection = ServiceConnection("engine", root, token, patience_seconds, timeout_seconds, EngineRefused)
        self._temporary = TemporaryDirectory(prefix="loomrl-weights-")
        self._shares_folder = weights_folder is not None
        self._folder = (weights_folder or Path(self._temporary.name)).resolve()
        self._served_folder = first_weights
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="engine")

    def complete(self, prompts: Sequence[Prompt], *, n: int = 1, sampling: Sampling | None = None) -> list[Completions]:
        """`n` completions of each prompt, in the order of the prompts: a request for each, which the engine decodes
        together. What an update cut short is requested again. `sampling` None is `Sampling()`.

        Raises:
            EngineRefused: for a prompt or sampling that the engine does not take.
            ServiceError: when it gives no answer in time, or fails. Completions of other prompts are lost, too.
            RuntimeError: after `close`.
        """
        wanted = [_of_prompt(sampling or Sampling(), number) for number in range(len(prompts))]
        return list(self._pool.map(self._whole, prompts, repeat(n), wanted))

    def update(self, policy: SavedPolicy, version: int) -> None:
        """Serve a policy's weights as this version from now on: save them, pause the engine, hand them over, read back
        the version, and resume.

        Raises:
            ServiceError: when the engine does not take them. What it served before goes on being served; where that
                cannot be known, it is left paused and the message says so. Where only the last request, to resume,
                fails, it has the new weights and may be paused.
            ArtifactError or OSError: when the weights cannot be saved; nothing was sent.
        """
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
        """Begin nothing new until `resume`. What runs is ended unfinished ("abort"), waited for ("wait"), or kept for
        later ("keep"), as far as the engine can. Raises ServiceError when it does not confirm that."""
        self._connection.request(*self._pause_request(mode))

    def close(self) -> None:
        """Wait for requests under way, close all connections and remove the weights that were written to a temporary
        folder. The engine goes on serving; later calls raise RuntimeError."""
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


def common_fields(n: int, sampling: Sampling) -> dict[str, Any]:
    """The fields, JSON values by name, that vLLM and SGLang call the same in a request for `n` completions."""
    named = sampling.model_dump(mode="json", include={"temperature", "top_p", "stop", "stop_token_ids", "ignore_eos"})
    return {"n": n, **named}


def tensors_of(folder: Path) -> list[str]:
    """The content of a folder's safetensors files in base64, one text for each in the order of their names."""
    return [base64.b64encode(path.read_bytes()).decode() for path in sorted(folder.glob("*.safetensors"))]


def version_of(answer: object) -> int:
    """The number of a weight version that an engine tells as a text of digits; 0 for anything else, as an engine tells
    of weights that were given no version."""
    return int(answer) if isinstance(answer, str) and answer.isascii() and answer.isdigit() else 0


def field_of(answer: Any, *names: str | int) -> Any:
    """The value in a JSON answer at a path of keys and indices.

    Raises:
        ServiceError: when there is nothing at that path.
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
