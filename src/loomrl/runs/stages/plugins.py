"""Which code of packages outside LoomRL a stage runs: written into its output, so that DVC's lock covers it."""

from pathlib import Path

from loomrl.environment.sources.plugins import PluginCode, PluginPackage, code_of
from loomrl.errors import ArtifactError
from loomrl.runs.config import PolicyConfig
from loomrl.system.files import write_atomic
from loomrl.system.plugins import ALGORITHMS, CHECKS, plugin_points
from loomrl.system.schema import Document

FILE = "plugins.json"
ARCHIVE = "plugins.tar"
_LEARNT = ("training", "evaluation", "safety", "export")  # run an algorithm's code
_CHECKED = ("safety", "export")  # run safety checks


class Plugins(Document):
    """The packages of others whose code a stage ran."""

    packages: list[PluginPackage]


def plugin_code(stage: str, config: PolicyConfig) -> PluginCode:
    """The packages of others that a stage runs now; an environment's own are in its snapshot.

    Raises:
        ConfigError: when an entry point cannot be loaded.
    """
    points = []
    if stage in _LEARNT and plugin_points(ALGORITHMS):
        from loomrl.algorithms.registry import find_entry_point  # each of these loads much

        points += [point for point in [find_entry_point(config.training.algorithm)] if point is not None]
    if stage in _CHECKED and plugin_points(CHECKS):
        from loomrl.safety.registry import check_entry_points

        points += check_entry_points(config.safety)
    return code_of(points)


def write_plugins(code: PluginCode, packages: list[PluginPackage], folder: Path) -> None:
    """Put the packages that a stage ran, and their files, beside its output; nothing where there are none.

    Raises:
        ArtifactError: when one of them changed while the stage ran; nothing is written then.
    """
    for name in (FILE, ARCHIVE):
        (folder / name).unlink(missing_ok=True)
    if not packages:
        return
    if changed := different(packages, code.packages()):
        raise ArtifactError(f"code of {', '.join(changed)} changed while the stage ran; run it again")
    if folder.name == "export":  # becomes a version, and runs what `safety` did, where the archive lies
        packages = [package.model_copy(update={"archived": False}) for package in packages]
    else:
        write_atomic(folder / ARCHIVE, code.archive(packages))
    Plugins(packages=packages).write(folder / FILE)


def read_plugins(folder: Path) -> list[PluginPackage]:
    """The packages of others that made a stage's output, as recorded there; empty where it needed none.

    Raises:
        ArtifactError: when the record cannot be read.
    """
    return Plugins.read(folder / FILE).packages if (folder / FILE).is_file() else []


def different(recorded: list[PluginPackage], current: list[PluginPackage]) -> list[str]:
    """Names of packages that are new, gone or of other code in `current`, sorted; empty where none are."""
    before, now = ({one.name: one.digest for one in packages} for packages in (recorded, current))
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
