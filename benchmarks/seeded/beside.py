"""A policy that the gate let pass, as a challenger of the champion that it was before it was spoilt.

What comes after the gate and before promotion: both are exported; what follows where they differ is examined as the
shadow stage does it, and the returns of their evaluations are compared as promotion does.
"""

from pathlib import Path
from types import ModuleType

from loomrl.config import PolicyConfig, load_config
from loomrl.export.export import export_policy
from loomrl.promotion.comparison import compare
from loomrl.serving.model import ServedPolicy
from loomrl.shadow.consequences import examine
from loomrl.shadow.following import claims_of
from loomrl.types import Verdict
from seeded import trained
from seeded.workshop import Outcome

NOT_WORSE = "not_worse"  # the rule of promotion


def challenge(case: ModuleType, root: Path, kept: Path) -> Outcome:
    """What it is refused for beside the champion; `root` is an empty folder, `kept` holds trained policies."""
    config = load_config(trained.path_of(case.POLICY))
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


def _version(config: PolicyConfig, spoiled_by: ModuleType | None, root: Path, kept: Path) -> Path:
    """Taken as far as the export; the folder of its stages."""
    root.mkdir()
    trained.examine(config.name, spoiled_by, root, kept)
    (folder,) = root.iterdir()
    stages = [folder / stage for stage in ("environment", "training", "evaluation", "safety")]
    export_policy(config, *stages, folder / "export")
    return folder
