"""Actors that play episodes of the gym, each with a copy of the policy: `RemotePlayers`.

Every attempt has random numbers of its own, so what is played does not depend on who plays it: a lost actor's share is
played again by the one in its place.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from loomrl.language.inference.decoding import DecodedAnswer, Decoder
from loomrl.language.inference.engine import Sampling
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.system.threads import one_thread
from loomrl.training.distributed.calls import Calls
from loomrl.training.distributed.learners.compression import BlockQuantization
from loomrl.training.integrated.dialogue import Exercise, PolicyMessage, TaskAttempt

MAX_ROWS = 256  # sequences that an actor decodes at once

log = logging.getLogger(__name__)
Compression = Literal["none", "int8"]
Weights = NDArray[Any]  # (P,) float32, or of `int8` (M,) uint8


def pack(policy: LanguagePolicy, compression: Compression) -> Weights:
    """A policy's weights as they are sent: (P,) float32; with `int8` (M,) uint8, a scale for every block and a byte
    each."""
    vector = parameters_to_vector(policy.model.parameters()).detach()
    packed = BlockQuantization(vector.numel()).encode(vector) if compression == "int8" else vector
    weights: Weights = packed.numpy()
    return weights


def unpack(weights: Weights, policy: LanguagePolicy) -> None:
    """Load weights, as `pack` encoded them, into a policy of the same sizes, in place."""
    vector = torch.from_numpy(weights.copy())
    if vector.dtype == torch.uint8:
        vector = BlockQuantization(sum(parameter.numel() for parameter in policy.model.parameters())).decode(vector)
    vector_to_parameters(vector, policy.model.parameters())


@dataclass(frozen=True)
class PlayerShare:
    """What one actor plays: exercises, the index of each among all exercises (`places`), and the seed they all
    share."""

    exercises: list[Exercise]
    places: list[int]
    seed: int


@dataclass(frozen=True)
class _Turn:
    """An attempt, and the random numbers its messages are drawn by."""

    attempt: TaskAttempt
    rng: np.random.Generator


class Player:
    """Plays exercises to their ends. A plain class: `RemotePlayers` makes Ray actors of it.

    Args:
        policy: of the kind that is trained; the weights it plays by come with each share.
        max_message_tokens: that it writes at once.
    """

    def __init__(self, policy: LanguagePolicy, max_message_tokens: int) -> None:
        self._policy, self._sampling = policy, Sampling(max_tokens=max_message_tokens)
        self._version = -1

    def play(self, share: PlayerShare, weights: Weights, version: int) -> list[list[TaskAttempt]]:
        """Play all attempts at each exercise of a share to their ends; returns them, exercise by exercise. `weights`
        are as `pack` encoded them; messages are stamped with `version`."""
        if version != self._version:
            unpack(weights, self._policy)
            self._version = version
        begun = [exercise.begin(self._policy.tokenizer) for exercise in share.exercises]
        turns = [
            _Turn(attempt, np.random.default_rng([share.seed, place * len(attempts) + number, 0]))
            for attempts, place in zip(begun, share.places, strict=True)
            for number, attempt in enumerate(attempts)
        ]
        with one_thread():
            while waiting := [turn for turn in turns if not turn.attempt.is_over]:
                for first in range(0, len(waiting), MAX_ROWS):
                    self._write_messages(waiting[first : first + MAX_ROWS])
        return begun

    def _write_messages(self, turns: Sequence[_Turn]) -> None:
        """Let the policy write one message in each of these attempts."""
        limit = self._sampling.max_tokens
        answers = [
            DecodedAnswer(tuple(turn.attempt.dialogue.tokens), self._sampling, turn.rng, limit) for turn in turns
        ]
        decoder = Decoder(self._policy)
        decoder.add(answers)
        while decoder.sequences:
            decoder.step()
        for turn, answer in zip(turns, answers, strict=True):
            turn.attempt.step(PolicyMessage(answer.token_ids, answer.log_probs, self._version))


class RemotePlayers:
    """Ray actors that play episodes, on the cluster this process is connected to. An actor that is lost or hangs is
    replaced.

    Args:
        num_workers: how many actors.
        policy: of the kind that is trained; its weights are sent by `update`.
        max_message_tokens: the most tokens of one message.
        hang_timeout_seconds: how long an actor may play one share.
        compression: of the weights that are sent; messages carry the log-probabilities by the weights that arrived.
    """

    def __init__(
        self,
        num_workers: int,
        policy: LanguagePolicy,
        max_message_tokens: int,
        hang_timeout_seconds: float,
        compression: Compression = "none",
    ) -> None:
        import ray

        self._timeout, self._compression = hang_timeout_seconds, compression
        self._class = ray.remote(num_cpus=1)(Player)
        self._arguments = ray.put(policy), max_message_tokens
        self.actors = [self._class.remote(*self._arguments) for _ in range(num_workers)]
        self._new = set(range(num_workers))

    def update(self, policy: LanguagePolicy, version: int) -> None:
        """Play by this policy's weights from now on; to be called before the first `play`. They are sent to a machine
        once, however many actors play there."""
        import ray

        self._weights, self._version = ray.put(pack(policy, self._compression)), version

    def play(self, exercises: Sequence[Exercise], seed: int) -> list[list[TaskAttempt]]:
        """All attempts at each exercise, played to their ends, in the order of the exercises.

        Raises:
            LoomRLError: that an actor raised, or when actors are lost again and again.
        """
        shares = [
            PlayerShare([exercises[place] for place in places], places, seed) for places in self._assigned(exercises)
        ]
        calls = Calls(self._timeout, "hang_timeout_seconds")

        def play_by(index: int) -> None:
            played = self.actors[index].play.remote(shares[index], self._weights, self._version)
            calls.add(index, played, [], index in self._new)

        def play_again(index: int, reason: str) -> None:
            self._replace(index, reason)
            play_by(index)

        for index in range(len(shares)):
            play_by(index)
        played = calls.wait_for_results(play_again, "actor {} of the gym was lost {} times in one batch")
        self._new.clear()
        found: dict[int, list[TaskAttempt]] = {}
        for index, share in enumerate(shares):
            found |= zip(share.places, played[index], strict=True)
        return [found[place] for place in range(len(exercises))]

    def close(self) -> None:
        """End the actors that play; `play` fails from then on."""
        import ray

        for actor in self.actors:
            ray.kill(actor)

    def _assigned(self, exercises: Sequence[Exercise]) -> list[list[int]]:
        """The places of each actor's exercises: of every domain as many as the others', for they differ in length."""
        order = sorted(range(len(exercises)), key=lambda place: exercises[place].task.domain)
        return [sorted(order[index :: len(self.actors)]) for index in range(len(self.actors))]

    def _replace(self, index: int, reason: str) -> None:
        import ray

        log.warning("actor %d of the gym was lost and is replaced: %s", index, reason)
        ray.kill(self.actors[index])
        self.actors[index] = self._class.remote(*self._arguments)
        self._new.add(index)
