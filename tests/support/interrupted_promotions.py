"""Promotions that die before one of their writes; as a program, one that is really killed: `DECISION RUN_ID STEP`."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loomrl.promotion import promote
from loomrl.storage import ledger
from loomrl.storage.registry import Registry
from loomrl.types import PromotionDecision


def die_before_write(patch: pytest.MonkeyPatch, step: int, die: Callable[[], Any]) -> list[str]:
    """Let the process die before its n-th write to registry or LoomDB; returns the writes that were made."""
    made: list[str] = []

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if len(made) == step:
                die()
            made.append(name)
            return original(*arguments, **options)

        return call

    for name in ("set_tag", "delete_tag", "set_aliases"):
        patch.setattr(Registry, name, watched(name, getattr(Registry, name)))
    patch.setattr(ledger, "record_move", watched("record_move", ledger.record_move))
    return made


if __name__ == "__main__":
    die_before_write(pytest.MonkeyPatch(), int(sys.argv[3]), lambda: os.kill(os.getpid(), signal.SIGKILL))
    promote.apply(PromotionDecision.read(Path(sys.argv[1])), sys.argv[2])
