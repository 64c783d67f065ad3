"""Look at what a champion decided since the last look, and at a challenger beside it: `python -m flows.monitor POLICY`;
exit 1: the champion is degraded."""

import argparse
import sys

from prefect import flow

from loomrl.errors import GateRefused
from loomrl.monitoring.look import DEGRADED, Look
from loomrl.promotion.comparison.compare import VersionComparison
from tasks.monitoring import claim_rows, compare_roles, difference_rows, look_at
from tasks.policies import PolicyName


@flow(name="monitor", flow_run_name="{policy}")
def monitor(policy: PolicyName) -> tuple[Look, VersionComparison | None]:
    """Judge the champion by its audit log; a degraded one is announced as the event `loomrl.policy.degraded`. Then
    compare the challenger with it, where there is one."""
    return look_at(policy), compare_roles(policy)


def main() -> None:
    """Look once."""
    from flows.command import exit_code, known_policy

    parser = argparse.ArgumentParser(prog="python -m flows.monitor")
    parser.add_argument("policy")
    arguments = parser.parse_args()
    sys.exit(exit_code(lambda: show(*monitor(known_policy(arguments.policy)))))


def show(look: Look, compared: VersionComparison | None) -> None:
    """Print a look and a comparison.

    Raises:
        GateRefused: when the champion is degraded.
    """
    from flows.command import print_rows

    print_rows(f"{look.policy}: version {look.version} in production", claim_rows(look))
    if compared is not None:
        print_rows(compared.sentence, difference_rows(compared))
    if look.outcome == DEGRADED:
        raise GateRefused(look.sentence)
    print(look.sentence)


if __name__ == "__main__":
    main()
