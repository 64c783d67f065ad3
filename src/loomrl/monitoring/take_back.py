"""Move the aliases back from a version: `python -m loomrl.monitoring.take_back POLICY VERSION WHY PERSON`.

A process of its own, started by `loomrl.serving.guardian.consequences`: the policy server knows nothing of promotion,
and a registry that hangs does not hold it up. Exit code 0: the version is not champion, or no longer; 2: there is no
champion to go back to; others: to be tried again.
"""

import sys

from loomrl.errors import LoomRLError
from loomrl.promotion import promote
from loomrl.storage.registry import CHAMPION, Registry


def take_back(policy: str, version: str, reason: str, person: str) -> str:
    """Roll back, if the version still is champion; returns a sentence that says what was done, or who is champion.

    A person, or another server, may have been faster.

    Raises:
        ConfigError: when there is nothing to go back to.
        ArtifactError: when the files of the version to go back to are not what was registered; no alias moves.
        ServiceError: when the registry fails, or somebody else is moving the aliases.
    """
    registry = Registry()
    with promote.exclusive(policy):
        champion = registry.aliases(policy).get(CHAMPION)
        if champion != version:
            return f"version {version} is not champion, {champion or 'none'} is"
        return promote.rollback(policy, reason, person, registry=registry).message


def main(arguments: list[str]) -> int:
    """Take one version back. `arguments` are policy, version, reason and person; returns the exit code.

    The code is 0 when it is done or the version is not champion, 2 when there is nothing to go back to, else that of
    the error, which is printed on standard error.
    """
    policy, version, reason, person = arguments
    try:
        print(take_back(policy, version, reason, person))
    except LoomRLError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
