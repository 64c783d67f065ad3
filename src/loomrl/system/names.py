"""What names something in a path: a policy, a server's chain, a run, a version.

Names come from command lines, routes, configs, and what MLflow and LoomDB hold; whoever writes there must not choose
where files go. One pattern says what is a name, and `loomrl.system.home.inside` is how a path is made of names.
"""

import re

from loomrl.errors import ConfigError

MAX_NAME = 200
MAX_FILE_NAME = 235  # a name with what comes before and behind it: file systems take 255 bytes, temporary names add 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


def checked_name(name: str, what: str = "name", longest: int = MAX_NAME) -> str:
    """The name as it was given, checked: letters a-z, digits, ".", "_" and "-", the first a letter or a digit.

    `what` is what the error calls it; `longest` is how many characters it may have.

    Raises:
        ConfigError: when it is no such name.
    """
    if len(name) <= longest and _NAME.fullmatch(name):
        return name
    raise ConfigError(
        f"{what} {name[:80]!r} is refused, for files are named after it; allowed are letters a-z, digits, '.', '_' "
        f"and '-', up to {longest}, the first a letter or a digit"
    )
