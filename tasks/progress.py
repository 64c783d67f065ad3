"""Follow a stage's events file: a bar on the terminal, a progress artifact in Prefect, metrics in MLflow."""

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loomrl.storage import registry
from loomrl.storage.run_record import read_run
from tasks.say import say
from tasks.tensorboard import Board

ARTIFACT_SECONDS = 2.0
METRICS_SECONDS = 5.0


class Follower:
    """Reads new events as they come. `pid`, `started` and `failure` tell what the stage said of itself."""

    def __init__(self, run_id: str, stage: str, path: Path) -> None:
        record = read_run(run_id)
        self._stage, self._path, self._offset = stage, path, 0
        self._key = f"{stage}-{record.policy}".replace("_", "-")  # Prefect allows no underscore
        self._mlflow_run_id = record.mlflow_run_id
        self._rows: list[tuple[str, float, int, int]] = []
        self._board = Board(record.policy, run_id)
        self._artifact: UUID | None = None
        self._artifact_time = self._metrics_time = 0.0
        self._bar = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[shown]}"),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(stage, total=None, shown="")
        self.pid: int | None = None
        self.failure: dict[str, Any] | None = None

    @property
    def started(self) -> bool:
        """Whether the stage's process ran at all (a cached result starts none)."""
        return self.pid is not None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()
        with self._board:
            self._send_metrics()

    def read(self) -> None:
        """Handle every whole line that was appended since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            getattr(self, f"_on_{event['event']}")(event)
        if time.monotonic() - self._metrics_time > METRICS_SECONDS:
            self._send_metrics()

    def _on_started(self, event: dict[str, Any]) -> None:
        self.pid = event["pid"]

    def _on_finished(self, _event: dict[str, Any]) -> None:
        self._publish(100.0, force=True)

    def _on_failed(self, event: dict[str, Any]) -> None:
        self.failure = event

    def _on_warning(self, event: dict[str, Any]) -> None:
        say(event["message"])

    def _on_resumed(self, event: dict[str, Any]) -> None:
        say(f"{self._stage} resumes at step {event['step']:,}")

    def _on_restored(self, event: dict[str, Any]) -> None:
        say(f"{self._stage}: learner {event['learner']} goes on at step {event['step']:,}, state {event['digest']}")

    def _on_engine(self, event: dict[str, Any]) -> None:
        say(f"{self._stage} computes with the {event['engine']} engine")

    def _on_progress(self, event: dict[str, Any]) -> None:
        shown = "  ".join(f"{name} {value:.4g}" for name, value in event["metrics"].items())
        self._bar.update(
            self._task,
            completed=event["completed"],
            total=event["total"],
            description=event["label"],
            shown=shown,
        )
        self._publish(100.0 * event["completed"] / max(event["total"], 1))

    def _on_metrics(self, event: dict[str, Any]) -> None:
        step, milliseconds = int(event["step"]), int(event["time"] * 1000)
        for name, value in event.items():
            if name not in ("event", "step", "time") and isinstance(value, int | float):
                self._rows.append((f"{self._stage}/{name}", float(value), step, milliseconds))
                self._board.add(f"{self._stage}/{name}", float(value), step, event["time"])

    def _publish(self, percent: float, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._artifact_time < ARTIFACT_SECONDS:
            return
        self._artifact_time = now
        if self._artifact is None:
            made = create_progress_artifact(percent, key=self._key, description=f"{self._stage} stage")
            self._artifact = cast(UUID, made)  # a coroutine only inside asynchronous flows
        else:
            update_progress_artifact(self._artifact, percent)

    def _send_metrics(self) -> None:
        self._metrics_time = time.monotonic()
        if self._rows and self._mlflow_run_id:
            registry.log_metrics_batch(self._mlflow_run_id, self._rows)
        self._rows = []
