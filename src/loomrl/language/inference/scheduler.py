"""One thread that decodes whatever was asked, together: what comes while it decodes joins at the next token.

Each version of the policy has a decoder of its own. New weights therefore stop nothing: what was begun by the old ones
is finished by them, beside what the new ones begin.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from loomrl.errors import ServiceError
from loomrl.language.inference.decoding import DecodedAnswer, Decoder
from loomrl.language.inference.engine import Completion, Completions, PauseMode
from loomrl.language.policies.policy import LanguagePolicy

log = logging.getLogger(__name__)


class Busy(ServiceError):
    """Too many completions wait, so that no more are accepted; try again."""


@dataclass(eq=False)
class CompletionJob:
    """The completions of one prompt, one of `sequences` each, and the future of their result. They are all made by one
    `version` of the policy, -1 before they are begun."""

    sequences: list[DecodedAnswer]
    future: "Future[Completions]" = field(default_factory=Future)
    version: int = -1


@dataclass(eq=False)
class _Served:
    """A version, its decoder, and the jobs it works on."""

    version: int
    decoder: Decoder
    jobs: list[CompletionJob] = field(default_factory=list)


class Scheduler:
    """Decides which completions are decoded when, and decodes them in a thread of its own, from the start to `close`.

    Args:
        max_running: sequences decoded at once.
        max_waiting: sequences that may wait for their turn.
        observe: called with each completion.
    """

    def __init__(self, max_running: int, max_waiting: int, observe: Callable[[Completion], None]) -> None:
        self._max_running, self._max_waiting, self._observe = max_running, max_waiting, observe
        self._changed = threading.Condition()
        self._waiting: deque[CompletionJob] = deque()
        self._served: list[_Served] = []  # the last one is the newest; older ones finish what they began
        self._accepts_new, self._steps, self._is_closed, self._aborts = True, True, False, False
        self._thread = threading.Thread(target=self._run, daemon=True, name="inference")
        self._thread.start()

    @property
    def num_running(self) -> int:
        """The number of sequences that are being decoded."""
        return sum(len(one.decoder.sequences) for one in list(self._served))

    @property
    def num_waiting(self) -> int:
        """The number of sequences that wait for their turn."""
        return sum(len(job.sequences) for job in list(self._waiting) if not job.future.cancelled())

    @property
    def is_alive(self) -> bool:
        """Whether the decoding thread runs; after it has ended, `submit` raises ServiceError."""
        return self._thread.is_alive()

    @property
    def is_paused(self) -> bool:
        """Whether the scheduler is paused and begins no new completion."""
        return not self._accepts_new

    @property
    def served(self) -> tuple[LanguagePolicy, int] | None:
        """The policy that answers what comes now, and its version; None before there is one."""
        newest = self._served[-1] if self._served else None
        return None if newest is None else (newest.decoder.policy, newest.version)

    def submit(self, jobs: Sequence[CompletionJob]) -> None:
        """Take jobs, to answer them in their turn by their futures; all of them or none.

        Raises:
            Busy: when too many sequences would wait.
            ServiceError: after `close`, or when the decoding thread has ended.
        """
        with self._changed:
            if self._is_closed:
                raise ServiceError("the engine was closed, or its thread ended; make another")
            num_waiting = self.num_waiting
            if num_waiting + sum(len(job.sequences) for job in jobs) > self._max_waiting:
                raise Busy(f"{num_waiting} completions wait, of at most {self._max_waiting}; ask again")
            self._waiting.extend(jobs)
            self._changed.notify_all()

    def serve(self, policy: LanguagePolicy, version: int) -> None:
        """Let this policy, as this version, decode everything that begins from now on."""
        with self._changed:
            self._served = [one for one in self._served if one.jobs] + [_Served(version, Decoder(policy))]
            self._changed.notify_all()

    def pause(self, mode: PauseMode) -> None:
        """Begin no new completion until `resume`. What runs is ended unfinished, with what waits ("abort"), waited for
        ("wait"), or kept for later ("keep"). Blocks until nothing runs, but for "keep"."""
        with self._changed:
            self._accepts_new = False
            self._steps = mode != "keep"
            self._aborts = mode == "abort"
            self._changed.notify_all()
            if mode != "keep":
                self._changed.wait_for(lambda: self._is_closed or self._accepts_new or not self._is_working())

    def resume(self) -> None:
        """Begin waiting completions and continue kept ones, after `pause`."""
        with self._changed:
            self._accepts_new = self._steps = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the decoding thread and wait for it; futures of unanswered completions fail with ServiceError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error = ServiceError("the engine's thread ended before it answered; its log says why")
        try:
            self._decode()
            error = ServiceError("the engine was closed before it answered")
        finally:
            with self._changed:
                self._is_closed = True
                self._fail(error)

    def _decode(self) -> None:
        """Work until closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._aborts or self._has_work())
                if self._is_closed:
                    return
                if self._aborts:
                    self._abort()
                begun = self._begin()
                served = list(self._served)
            for one in served:
                self._advance(one, begun if one is served[-1] else [])
            with self._changed:
                self._served = [one for one in self._served[:-1] if one.jobs] + self._served[-1:]
                self._changed.notify_all()

    def _is_working(self) -> bool:
        return any(one.jobs for one in self._served)

    def _has_work(self) -> bool:
        can_begin = self._accepts_new and bool(self._waiting) and bool(self._served)
        return (self._steps and self._is_working()) or can_begin

    def _begin(self) -> list[CompletionJob]:
        """Jobs for which there is room now, given to the newest policy."""
        begun: list[CompletionJob] = []
        num_running = self.num_running
        while self._accepts_new and self._served and self._waiting:
            size = len(self._waiting[0].sequences)
            if num_running and num_running + size > self._max_running:
                break
            job = self._waiting.popleft()
            if not job.future.cancelled():
                num_running += size
                job.version = self._served[-1].version
                begun.append(job)
        if begun:
            self._served[-1].jobs += begun
        return begun

    def _advance(self, served: _Served, begun: Sequence[CompletionJob]) -> None:
        """Decode one token of everything a version works on; what goes wrong ends these jobs and no others."""
        try:
            if begun:
                served.decoder.add([sequence for job in begun for sequence in job.sequences])
            self._drop_cancelled(served)
            if self._steps and served.decoder.sequences and served.decoder.step():
                self._answer(served)
        except Exception as error:  # whatever it is, who waits must be told
            log.error("decoding by version %d failed", served.version, exc_info=error)
            for job in served.jobs:
                _reject(job, ServiceError(f"decoding by version {served.version} failed: {error!r}"))
            served.jobs, served.decoder = [], Decoder(served.decoder.policy)

    def _drop_cancelled(self, served: _Served) -> None:
        for job in [job for job in served.jobs if job.future.cancelled()]:
            for sequence in job.sequences:
                if sequence.finish_reason is None:
                    served.decoder.drop(sequence)
            served.jobs.remove(job)

    def _answer(self, served: _Served) -> None:
        """Answer all jobs whose sequences have ended."""
        for job in [job for job in served.jobs if all(one.finish_reason is not None for one in job.sequences)]:
            served.jobs.remove(job)
            self._resolve(job, served.decoder.policy)

    def _resolve(self, job: CompletionJob, policy: LanguagePolicy) -> None:
        answer = Completions(
            list(job.sequences[0].prompt), [_completion(one, policy, job.version) for one in job.sequences]
        )
        for completion in answer.completions:
            self._observe(completion)
        if job.future.set_running_or_notify_cancel():
            job.future.set_result(answer)

    def _abort(self) -> None:
        """End everything as far as it is."""
        self._aborts = False
        for served in self._served:
            served.decoder = Decoder(served.decoder.policy)
            for job in served.jobs:
                self._cut_short(job, served)
            served.jobs = []
        while self._waiting:
            job = self._waiting.popleft()
            if not self._served:
                _reject(job, ServiceError("the engine was told to abort before it had a policy; load one"))
                continue
            job.version = self._served[-1].version
            self._cut_short(job, self._served[-1])

    def _cut_short(self, job: CompletionJob, served: _Served) -> None:
        for sequence in job.sequences:
            sequence.finish_reason = sequence.finish_reason or "abort"
        self._resolve(job, served.decoder.policy)

    def _fail(self, error: ServiceError) -> None:
        for job in [*self._waiting, *(job for one in self._served for job in one.jobs)]:
            _reject(job, error)


def _completion(sequence: DecodedAnswer, policy: LanguagePolicy, version: int) -> Completion:
    assert sequence.finish_reason is not None
    text = policy.tokenizer.decode(sequence.token_ids)
    if isinstance(sequence.stopped_by, str):
        text = text.partition(sequence.stopped_by)[0]
    return Completion(
        sequence.token_ids, sequence.log_probs, sequence.finish_reason, text, version, sequence.stopped_by
    )


def _reject(job: CompletionJob, error: ServiceError) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
