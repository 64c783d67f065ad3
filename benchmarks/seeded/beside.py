"""A policy that the gate let pass, as a challenger of the champion that it was before it was spoilt.

What comes after the gate and before promotion: both are exported; what follows where they differ is examined as the
shadow stage does it, and the returns of their evaluations are compared as promotion does.
"""

import os
from pathlib import Path
from types import ModuleType, SimpleNamespace

from loomrl.evaluation.evaluate import evaluate_policy
from loomrl.export.export import export_policy
from loomrl.promotion.comparison.returns import compare
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.consequences import examine
from loomrl.shadow.following import claims_of
from loomrl.system.files import write_sums
from loomrl.types import Verdict
from seeded import trained
from seeded.workshop import Folders, Outcome, Workshop

NOT_WORSE = "not_worse"  # the rule of promotion
CARTPOLE = "cartpole"  # the config beside whose good policy the files of `policies` stand


def challenge(case: ModuleType, root: Path, kept: Path) -> Outcome:
    """What it is refused for beside the champion; `root` is an empty folder, `kept` holds trained policies."""
    config = load_config(trained.path_of(policy_of(case)))
    champion = _version(config, None, root / "champion", kept)
    challenger = _version(config, case, root / "challenger", kept)
    served = [ServedPolicy.load(one / "export", one.parent.name) for one in (challenger, champion)]
    claims = claims_of(examine(config, champion / "environment", *served), config.shadow)
    found = {claim.id: claim.verdict for claim in claims if claim.mandatory}
    told = [claim.finding for claim in claims if claim.mandatory and claim.verdict is Verdict.REFUTED]
    compared = compare(challenger / "evaluation", champion / "evaluation", config.promotion)
    assert not isinstance(compared, str), compared
    if (verdict := compared.verdict) is Verdict.REFUTED:
        told.append(compared.sentence())
    found[NOT_WORSE] = verdict
    blocking = [name for name, verdict in found.items() if verdict in (Verdict.REFUTED, Verdict.UNDECIDED)]
    refuted = [name for name in blocking if found[name] is Verdict.REFUTED]
    return Outcome(tuple(blocking), tuple(refuted), (), "; ".join(told))


def policy_of(case: ModuleType) -> str:
    """The name of the config of the policy that a file spoils."""
    return getattr(case, "POLICY", CARTPOLE)


class _CartPoles(Workshop):
    """Spoils CartPole's good policy, trained once and kept in a folder of this process's own.

    It is evaluated in as many episodes as the config says.
    """

    def __init__(self, root: Path, config: PolicyConfig, kept: Path) -> None:
        super().__init__(root)
        self.evaluation = config.evaluation.model_copy(update={"render": False})
        self.kept = kept / f"{CARTPOLE}-{os.getpid()}"

    def _copy_of_good(self, folder: Path) -> Folders:
        return Workshop(self.kept)._copy_of_good(folder)

    def _evaluated(self, folders: Folders) -> None:
        evaluate_policy(self.evaluation, folders.environment, folders.training, folders.evaluation)
        write_sums(folders.evaluation)


def _version(config: PolicyConfig, spoiled_by: ModuleType | None, root: Path, kept: Path) -> Path:
    """Taken as far as the export; the folder of its stages."""
    root.mkdir()
    if config.name == CARTPOLE:
        unspoilt = SimpleNamespace(__name__=CARTPOLE)
        _CartPoles(root, config, kept).examine(unspoilt if spoiled_by is None else spoiled_by)  # type: ignore[arg-type]
    else:
        trained.examine(config.name, spoiled_by, root, kept)
    (folder,) = root.iterdir()
    stages = [folder / stage for stage in ("environment", "training", "evaluation", "safety")]
    export_policy(config, *stages, folder / "export")
    return folder
