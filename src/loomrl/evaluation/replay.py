"""A rendered episode as a small GIF, where a renderer works."""

import contextlib
import io
import logging
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.errors import LoomRLError
from loomrl.system import events
from loomrl.system.files import write_atomic
from loomrl.types import ActFunction, Episode, Json

log = logging.getLogger(__name__)

MAX_BYTES = 1_500_000
_WIDTHS = (320, 240, 160, 96)  # pixels, tried in turn until the file is small enough


NOT_RENDERED = (
    "the episode was not rendered: the environment offers no pictures (render mode rgb_array), or the machine that "
    "evaluated the policy could not draw them; its events and log say which"
)


def render_episode(
    act: ActFunction, snapshot_folder: Path, episode: Episode, path: Path, max_frames: int
) -> str | None:
    """Play an episode again and write it as a GIF of at most `max_frames` evenly spaced frames and 1.5 MB.

    Returns None, or why there is none: the same words on every machine, because they reach the evaluation's report.
    What the machine itself said is a warning in the log and the stage's events.

    Raises:
        ArtifactError: when the file cannot be written.
    """
    stride = math.ceil(episode.length / (max_frames - 1))
    try:
        with _off_screen():
            frames, rate = _draw(snapshot_folder, act, episode, stride)
    except LoomRLError as error:
        message = f"no rendered episode: {_first_line(error)}"
        log.warning(message)
        events.emit("warning", message=message)
        return NOT_RENDERED
    data = _fit(frames, round(1000 * stride / rate))
    if data is None:
        return f"the episode is larger than {MAX_BYTES} bytes even at {_WIDTHS[-1]} pixels"
    write_atomic(path, data)
    return None


class RendererFault(LoomRLError):
    """The renderer raised, or returned something that is not a picture."""


@contextlib.contextmanager
def _off_screen() -> Iterator[None]:
    """Draw without a display even where there is one, so that pictures do not depend on it."""
    chosen = {"SDL_VIDEODRIVER": "dummy"}
    if sys.platform == "linux":
        chosen["MUJOCO_GL"] = "egl"
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _draw(snapshot_folder: Path, act: ActFunction, episode: Episode, stride: int) -> tuple[list[Any], float]:
    """The frames, and how many of the environment's steps make a second."""
    from loomrl.environment.make import make_env

    with contextlib.closing(make_env(snapshot_folder, render_mode="rgb_array")) as env:
        return _record(env, act, episode, stride), float((env.metadata or {}).get("render_fps", 30))


def _record(env: Any, act: ActFunction, episode: Episode, stride: int) -> list[Any]:
    """The first frame, then one every `stride` steps."""
    rng = np.random.default_rng(episode.seed)
    obs, _ = env.reset(seed=episode.seed)
    frames = [_frame(env)]
    memory: Json = {}
    for step in range(1, episode.length + 1):
        chosen = act(np.asarray(obs)[None], rng, **memory)
        memory = {} if chosen.memory is None else {"memory": chosen.memory}
        obs, _, terminated, truncated, _ = env.step(chosen.action[0])
        if step % stride == 0:
            frames.append(_frame(env))
        if terminated or truncated:
            break
    return frames


def _frame(env: Any) -> Any:
    try:
        frame = env.render()
    except Exception as error:  # renderers raise whatever their graphics library raises
        hint = "; MuJoCo renders off screen with the system's libEGL" if "gl" in str(error).lower() else ""
        raise RendererFault(f"the renderer failed: {type(error).__name__}: {_first_line(error)}{hint}") from error
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
        raise RendererFault(f"the renderer returned {type(frame).__name__} instead of an array (height, width, 3)")
    return frame


def _fit(frames: list[Any], milliseconds: int) -> bytes | None:
    """The GIF at the largest width that keeps it within `MAX_BYTES`."""
    for width in _WIDTHS:
        data = _encode(frames, width, max(20, milliseconds))
        if len(data) <= MAX_BYTES:
            return data
    return None


def _encode(frames: list[Any], width: int, milliseconds: int) -> bytes:
    from PIL import Image

    height = max(1, round(frames[0].shape[0] * width / frames[0].shape[1]))
    pictures = [
        Image.fromarray(frame.astype(np.uint8)).resize((width, height), Image.Resampling.BILINEAR) for frame in frames
    ]
    palette = pictures[len(pictures) // 2].quantize(colors=64)
    indexed = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    buffer = io.BytesIO()
    arguments: Json = {"duration": milliseconds, "loop": 0, "optimize": False}
    indexed[0].save(buffer, format="GIF", save_all=True, append_images=indexed[1:], **arguments)
    return buffer.getvalue()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
