"""The life cycle of a policy: seven stages, one chain of evidence.

python -m flows.lifecycle cartpole --set training.seed=2     run once
python flows/lifecycle.py                                    serve it to the Prefect server at PREFECT_API_URL
"""

if __name__ == "__main__" and not __package__:  # started as a script: the folder of `tasks` is not on the path yet
    import os
    import sys
    from pathlib import Path

    root = Path(__file__).resolve().parents[1]
    os.chdir(root)
    os.execv(sys.executable, [sys.executable, "-m", "flows.lifecycle", *sys.argv[1:]])

from typing import Annotated, Any

from prefect import flow
from prefect.transactions import transaction
from pydantic import Field

from tasks.approval import wait_for_approval
from tasks.environment import environment
from tasks.evaluation import evaluation
from tasks.export import export
from tasks.policies import PolicyName
from tasks.promotion import promotion
from tasks.run import exclusive_project, life_cycle
from tasks.safety import safety
from tasks.shadow import shadow
from tasks.training import training

Overrides = Annotated[
    dict[str, Any],  # read strictly by loomrl.runs.config
    Field(description="Numbers and choices on top of the config, for example {'training.seed': 2}"),
]


@flow(name="lifecycle", flow_run_name="{policy}")
def lifecycle(policy: PolicyName, overrides: Overrides = {}) -> str:  # noqa: B006 - Prefect shows it in the form
    """Take a policy from its environment to production; returns the run's id.

    Raises:
        GateRefused: when a gate said no; the evidence report says why.
    """
    with life_cycle(policy, overrides) as run_id:
        with exclusive_project(run_id):
            environment(run_id)
            training(run_id)
            evaluation(run_id)
            safety(run_id)
            export(run_id)
        with transaction():
            shadow(run_id)
            promotion(run_id)
        if wait_for_approval(run_id):
            promotion(run_id)
    return run_id


if __name__ == "__main__":
    from flows.command import main
    from flows.monitor import monitor
    from flows.rollback import rollback
    from flows.tune import tune

    main(lifecycle, rollback, monitor, tune)
