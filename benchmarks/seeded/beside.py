"""A policy that the gate let pass, as a challenger of the champion that it was before it was spoilt.

What comes after the gate and before promotion: both are exported; what follows where they differ is examined as the
shadow stage does it, and the returns of their evaluations are compared as promotion does. As in a promotion, what is
undecided refuses too. Good policies stand beside a champion as well: so it is known how often an honest challenger is
refused. What a server would show is not judged: latency, errors, and how many decisions were watched.
"""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from loomrl.evaluation.evaluate import evaluate_policy
from loomrl.export.export import export_policy
from loomrl.promotion.comparison.returns import compare, worst_pair
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.consequences import examine
from loomrl.shadow.following import claims_of, losing_pair
from loomrl.shadow.replay import replay
from loomrl.system.files import write_sums
from loomrl.types import Bound, Claim, Verdict
from seeded import trained
from seeded.workshop import Folders, Outcome, Workshop

NOT_WORSE = "not_worse"  # the rule of promotion
CARTPOLE = "cartpole"  # the config beside whose good policy the files of `policies` stand


def challenge(case: ModuleType, root: Path, kept: Path) -> Outcome:
    """What it is refused for beside the champion; `root` is a folder for what is made, `kept` has trained policies."""
    config = load_config(trained.path_of(policy_of(case)))
    if hasattr(case, "POLICY"):
        examined, champion = trained.examine, _champion(config, root, kept)
    else:
        examined = _examine_cartpole
        champion = _version(config, partial(examined, config.name, None), root / "champion", kept)
    challenger = _version(config, partial(examined, config.name, case), root / "challenger", kept)
    return _compared(config, challenger, champion)


def challenge_honestly(policy: str, folder: Path, root: Path, kept: Path) -> Outcome:
    """What a policy is refused for beside the one that its config trains, where nobody spoilt either.

    `folder` holds the stages of the challenger, as far as the gate; `root` is a folder for what is made, and `kept`
    keeps the champion for those that come after it.
    """
    config = load_config(trained.path_of(policy))
    champion = _champion(config, root, kept)
    _export(config, folder)
    return _compared(config, folder, champion)


def _champion(config: PolicyConfig, root: Path, kept: Path) -> Path:
    """What a config trains, taken as far as the export, once."""

    def make(folder: Path) -> None:
        shutil.move(_version(config, partial(trained.examine, config.name, None), root / "champion", kept), folder)

    return trained.kept_once(kept / f"champion-{config.name}", make)


def _compared(config: PolicyConfig, challenger: Path, champion: Path) -> Outcome:
    """What stands in the way of a challenger, of the claims of shadow and promotion; both folders hold all stages."""
    served = [ServedPolicy.load(one / "export", one.name) for one in (challenger, champion)]
    followed = examine(config, champion / "environment", *served)
    claims = [claim for claim in claims_of(followed, config.shadow) if claim.mandatory]
    claims.append(_not_worse(challenger / "evaluation", champion / "evaluation", config))
    refuted, undecided = _ids(claims, Verdict.REFUTED), _ids(claims, Verdict.UNDECIDED)
    replayed = [
        claim.id
        for claim in claims
        if claim.id in (*refuted, *undecided)
        and claim.counterexample is not None
        and replay(claim, followed, config, champion / "environment", *served).reproduced
    ]
    told = [claim.finding or claim.statement for claim in claims if claim.id in refuted]
    told += [f"{name} stays undecided" for name in undecided]
    return Outcome((*refuted, *undecided), refuted, tuple(replayed), "; ".join(told))


def _not_worse(challenger: Path, champion: Path, config: PolicyConfig) -> Claim:
    """The rule of promotion, by the evaluations of both."""
    compared = compare(challenger, champion, config.promotion)
    assert not isinstance(compared, str), compared
    return Claim(
        id=NOT_WORSE,
        stage="promotion",
        statement=compared.sentence(),
        mandatory=True,
        method="as promotion does",
        verdict=compared.verdict,
        bound=Bound(kind="lower", measured=compared.low, limit=-compared.margin, unit="return"),
        counterexample=losing_pair(*worst_pair(challenger, champion)),
    )


def _ids(claims: list[Claim], verdict: Verdict) -> tuple[str, ...]:
    return tuple(claim.id for claim in claims if claim.verdict is verdict)


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


def _examine_cartpole(policy: str, spoiled_by: ModuleType | None, root: Path, kept: Path) -> Outcome:
    """What the gate says of the good policy of `policies`, as it is or spoilt by a file."""
    case: Any = SimpleNamespace(__name__=policy) if spoiled_by is None else spoiled_by
    return _CartPoles(root, load_config(trained.path_of(policy)), kept).examine(case)


def _version(config: PolicyConfig, examined: Callable[[Path, Path], Outcome], root: Path, kept: Path) -> Path:
    """Taken as far as the export; the folder of its stages."""
    root.mkdir()
    examined(root, kept)
    (folder,) = root.iterdir()
    _export(config, folder)
    return folder


def _export(config: PolicyConfig, folder: Path) -> None:
    stages = [folder / stage for stage in ("environment", "training", "evaluation", "safety")]
    export_policy(config, *stages, folder / "export")
