"""What names something in a path: a policy, a server's chain, a run, a version.

Names come from command lines, routes, configs, and what MLflow and LoomDB hold; whoever writes there must not choose
where files go. One pattern says what is a name, and `loomrl.home.inside` is how a path is made of names.
"""

import re

from loomrl.errors import ConfigError

MAX_NAME = 200  # a file system's limit is 255 bytes, and names get endings
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}", re.ASCII)


def checked_name(name: str, what: str = "name") -> str:
    """The name, as it was given.

    Raises:
        ConfigError: when it is none.
    """
    if _NAME.fullmatch(name):
        return name
    raise ConfigError(
        f"{what} {name[:80]!r} is refused, for files are named after it; allowed are letters a-z, digits, '.', '_' "
        f"and '-', up to {MAX_NAME}, the first a letter or a digit"
    )
