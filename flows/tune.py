"""Search for better training settings: `python -m flows.tune POLICY [--trials N]`; run again, it goes on."""

import argparse
import sys
from typing import Annotated

from prefect import flow
from pydantic import Field

from loomrl.runs.tuning.search import Trial
from tasks.policies import PolicyName
from tasks.tuning import search, trial_rows

NumTrials = Annotated[int, Field(ge=1, description="How many trials the search has in the end; default: the config's")]


@flow(name="tune", flow_run_name="{policy}")
def tune(policy: PolicyName, trials: NumTrials | None = None) -> tuple[list[Trial], str]:
    """Try settings as the config's `tuning:` section says; returns the trials and the command that uses the best."""
    return search(policy, trials)


def main() -> None:
    """Search once."""
    from flows.command import exit_code, known_policy

    parser = argparse.ArgumentParser(prog="python -m flows.tune")
    parser.add_argument("policy")
    parser.add_argument("--trials", type=int, metavar="N", help="how many trials the search has in the end")
    arguments = parser.parse_args()
    if arguments.trials is not None and arguments.trials < 1:
        parser.error(f"--trials {arguments.trials}: at least 1 is needed")
    sys.exit(exit_code(lambda: show(*tune(known_policy(arguments.policy), arguments.trials))))


def show(trials: list[Trial], command: str) -> None:
    """Print the trials and what to do with the best."""
    from flows.command import print_rows

    print_rows("trials, best first", trial_rows(trials))
    print(command)


if __name__ == "__main__":
    main()
