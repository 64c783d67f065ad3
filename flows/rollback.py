"""Put the previous champion back: `python -m flows.rollback POLICY --reason WHY --by NAME [--to VERSION]`."""

import argparse
import sys

from prefect import flow

from tasks.policies import PolicyName
from tasks.rollback import roll_back


@flow(name="rollback", flow_run_name="{policy}")
def rollback(policy: PolicyName, reason: str, person: str, to: str | None = None) -> str:
    """Make the previous champion, or version `to` that once was one, champion again; returns its version."""
    return roll_back(policy, reason, person, to)


def main() -> None:
    """Roll back once."""
    from flows.command import exit_code

    parser = argparse.ArgumentParser(prog="python -m flows.rollback")
    parser.add_argument("policy")
    parser.add_argument("--reason", required=True)
    parser.add_argument("--by", required=True, metavar="NAME")
    parser.add_argument("--to", metavar="VERSION")
    arguments = parser.parse_args()
    sys.exit(exit_code(lambda: print(rollback(arguments.policy, arguments.reason, arguments.by, arguments.to))))


if __name__ == "__main__":
    main()
