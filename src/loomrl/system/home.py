"""Where a project and its state lie."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.files import tighten
from loomrl.system.names import MAX_FILE_NAME, checked_name


def project_root(start: Path | None = None) -> Path:
    """The nearest folder at or above `start` that holds `dvc.yaml`.

    Raises:
        ConfigError: when there is none.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "dvc.yaml").is_file():
            return folder
    raise ConfigError(f"no dvc.yaml at or above {start}; run this inside a LoomRL project")


def config_file(policy: str, project: Path | None = None) -> Path:
    """The path of a policy's config in a project, by default in the one around this folder; it need not be there.

    Raises:
        ConfigError: for what is no name, such as `../x`, or outside a project.
    """
    return (project or project_root()) / "configs" / f"{checked_name(policy, 'policy')}.yaml"


def home() -> Path:
    """The folder of all state: `$LOOMRL_HOME`, else the project's `.loomrl`, else `~/.loomrl`. Only its owner enters.

    Raises:
        ArtifactError: when it cannot be made or written.
    """
    folder = _home_path()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tighten(folder)
    except OSError as error:
        raise ArtifactError(f"cannot make LOOMRL_HOME {folder}: {error.strerror}; set LOOMRL_HOME") from error
    if not os.access(folder, os.W_OK):
        raise ArtifactError(f"LOOMRL_HOME {folder} is not writable; set LOOMRL_HOME to a folder that is")
    return folder


def inside(*names: str) -> Path:
    """The path `LOOMRL_HOME/NAME/NAME...`, which need not be there; LOOMRL_HOME itself is made.

    Raises:
        ConfigError: for one that is no name, such as `../x`.
        ArtifactError: when LOOMRL_HOME cannot be made or written.
    """
    return home().joinpath(*(checked_name(name, longest=MAX_FILE_NAME) for name in names))


def without_folders(text: str) -> str:
    """A message in which the folders of this host that LoomRL works in are "…": it is for people of other hosts."""
    folders = {_home_path(), Path.home(), Path.home().resolve(), Path(tempfile.gettempdir())}
    with suppress(ConfigError):
        folders.add(project_root())
    for folder in sorted(folders - {Path("/")}, key=lambda one: len(one.parts), reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(str(folder))}(?![\w.-])", "…", text)
    return text


def _home_path() -> Path:
    if configured := os.environ.get("LOOMRL_HOME"):
        return Path(configured).expanduser().resolve()
    try:
        return project_root() / ".loomrl"
    except ConfigError:
        return Path.home() / ".loomrl"


def loomdb_url() -> str:
    """LoomDB's SQLAlchemy URL: `$LOOMRL_DATABASE_URL`, else SQLite under the home.

    Raises:
        ArtifactError: when it is to lie under LOOMRL_HOME, and that cannot be made or written.
    """
    return os.environ.get("LOOMRL_DATABASE_URL") or f"sqlite:///{home() / 'loom.db'}"


def shares_loomdb() -> bool:
    """Whether `LOOMRL_DATABASE_URL` names LoomDB, so that other homes may share it."""
    return bool(os.environ.get("LOOMRL_DATABASE_URL"))


def tracking_uri() -> str:
    """MLflow's tracking URI: `$MLFLOW_TRACKING_URI`, else SQLite under the home.

    Raises:
        ArtifactError: when it is to lie under LOOMRL_HOME, and that cannot be made or written.
    """
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow.db'}"
