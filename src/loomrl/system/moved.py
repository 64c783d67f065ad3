"""Modules that have moved can be imported by their old names for one release; that warns and names the new one."""

import importlib
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from types import ModuleType

# The new package -> what moved there; "old:new" where the last name changed as well. Not here are modules whose old
# name a package has now: algorithms.dqn, algorithms.networks, algorithms.sac, cli, promotion.comparison, runs,
# safety.case and serving.controls.
_MOVED = {
    "system": "files home schema names lifetime pipes processors machine_code events training.threads",
    "system.security": "encryption signing signing_keys secret_files secret_keywords credentials web_access",
    "statistics": (
        "assignment betting sequential safety.spending evaluation.statistics:intervals shadow.statistics:clustered"
    ),
    "runs": "preflight config stages report tuning environment.verify:verify_snapshot",
    "storage": "provenance loomdb registry upkeep promotion.ledger model_signature",
    "environment": "finite",
    "algorithms": "replay",
    "training": "distributed distributed.config:config gym.integration:integrated training.narrator:progress_reporter",
    "promotion": "comparison",
    "promotion.comparison": "offpolicy:off_policy monitoring.window",
    "cli": (
        "comparison.commands:comparison environment.commands:environment serving.commands:serving "
        "serving.operator_commands:orders serving.audit_commands:audit promotion.commands:promotion "
        "report.commands:report safety.commands:safety safety.certified.commands:certified "
        "safety.model_checking.commands:model_checking upkeep.commands:upkeep "
        "trajectory.commands:trajectory inference.commands:inference"
    ),
    "language": "inference trajectory",
    "system.http": (
        "serving.asgi serving.compression serving.problems serving.tokens serving.guard "
        "serving.browsers serving.intake serving.bounded serving.accepting serving.openapi "
        "serving.routing trajectory.access trajectory.request trajectory.service_metrics "
        "trajectory.options trajectory.service"
    ),
    "storage.audit": (
        "serving.chain serving.segments serving.compacted serving.compaction serving.following "
        "serving.verification serving.history serving.heads serving.keeper serving.columns "
        "serving.records serving.arrays serving.sealing serving.audit:log serving.reserve "
        "serving.anchors serving.exported_anchor serving.legacy_heads serving.full_verification "
        "serving.hosts monitoring.tail:following"
    ),
    "serving.api": (
        "serving.app serving.status serving.several:worker_group serving.batching serving.bodies "
        "serving.budget serving.control serving.hot serving.inference_protocol serving.replies "
        "serving.rollback serving.tensors serving.dashboard"
    ),
    "serving.decisions": (
        "serving.requests serving.packing serving.retries serving.decider "
        "serving.authority serving.choosing serving.groups:batches serving.memory serving.feedback serving.limits "
        "serving.decision_records:records serving.actions"
    ),
    "serving.policy": (
        "serving.model serving.shield serving.exploration serving.roles serving.sources serving.aliases "
        "serving.last_verified serving.distance"
    ),
    "serving.controls": ("serving.orders serving.overrides serving.plan serving.numbering serving.elapsed"),
    "serving.guardian": (
        "serving.quarantine monitoring.announce monitoring.config monitoring.consequences "
        "monitoring.evidence monitoring.exchange monitoring.guardian monitoring.guardian_child:child "
        "monitoring.monitor monitoring.sharing monitoring.stream monitoring.tokens monitoring.trial "
        "monitoring.units monitoring.version_monitors monitoring.watch monitoring.weigher"
    ),
    "serving.workers": (
        "serving.place:address serving.agreement serving.shared_limits serving.siblings:peers serving.joining"
    ),
    "serving.mirror": "serving.shadow_child:child serving.shadow_process:process serving.shadow_state:state",
    "serving.telemetry": "serving.metrics serving.statistics serving.dashboard.history",
    "serving.supervision": "serving.supervisor serving.worker",
    "serving": "serving.replay:recomputation serving.parts:context",
    "algorithms.policies": (
        "algorithms.policy algorithms.actor_critic algorithms.recurrent algorithms.distributions "
        "export.graph:onnx_graph"
    ),
    "algorithms.networks": "algorithms.encoders algorithms.preprocessing",
    "algorithms.dqn": (
        "algorithms.dqn_compiled:compiled algorithms.dqn_policy:policy algorithms.dqn_torch:torch_engine"
    ),
    "algorithms.sac": (
        "algorithms.sac_compiled:compiled algorithms.sac_policy:policy algorithms.sac_torch:torch_engine"
    ),
    "language.algorithms": (
        "algorithms.answering algorithms.text_learning:learning algorithms.text_policy:policy "
        "algorithms.grpo algorithms.token_ppo"
    ),
    "environment.wrappers": (
        "environment.bounded environment.flat environment.guard environment.randomized "
        "environment.shielded environment.stacking"
    ),
    "environment.snapshots": (
        "environment.snapshot environment.store environment.fingerprint environment.releases environment.repeat"
    ),
    "environment.collecting": "environment.collector environment.episode_log",
    "environment.sources": (
        "environment.source environment.roots environment.importer environment.dependencies environment.plugins"
    ),
    "safety.case": ("safety.evidence safety.standing safety.tally safety.counterexample"),
    "safety.probing": (
        "safety.search.playing safety.probes safety.worlds safety.repeats safety.samples safety.drops:judging "
        "safety.exploits"
    ),
    "training.distributed.learners": (
        "distributed.learner distributed.learner_jobs distributed.group distributed.compression "
        "distributed.joint_checkpoints distributed.watchdog distributed.workplace:worker_directory "
        "distributed.hosts distributed.desk:coordinator distributed.process_group"
    ),
    "training.distributed.rollout_workers": (
        "distributed.actors:workers distributed.actor_config distributed.crew:pool "
        "distributed.environment_shares distributed.rollouts distributed.collecting"
    ),
    "training.integrated": "distributed.nexus distributed.players",
    "language.trajectory.state": (
        "trajectory.hub trajectory.queue trajectory.groups trajectory.environments trajectory.packing "
        "trajectory.changes trajectory.contents trajectory.fragments"
    ),
    "language.trajectory.storage": (
        "trajectory.store trajectory.tables trajectory.journal trajectory.keeping trajectory.alone"
    ),
    "language.trajectory.api": (
        "trajectory.app trajectory.router trajectory.bodies trajectory.posting trajectory.posts "
        "trajectory.delivery trajectory.view trajectory.upkeep trajectory.metrics"
    ),
    "language.inference.api": (
        "inference.answering inference.app inference.asking inference.completing inference.updating inference.metrics"
    ),
    "language.policies": (
        "language.policy language.model language.transformer language.pretrained language.cache "
        "language.tokens language.padding language.generation language.sampling"
    ),
    "language.learning": (
        "language.learner language.grpo language.ppo language.losses language.batch language.groups "
        "language.examples language.sources language.trainer language.warm_start language.evaluation"
    ),
}


def _renamed() -> dict[str, str]:
    names = {}
    for package, moved in _MOVED.items():
        for one in moved.split():
            old, _, new = one.partition(":")
            names[f"loomrl.{old}"] = f"loomrl.{package}.{new or old.rpartition('.')[2]}"
    return names


RENAMED = _renamed()


def new_name(name: str) -> str | None:
    """The new name of a module by its old one, also of a module in a package that has moved; None for any other."""
    whole, rest = name, ""
    while whole not in RENAMED:
        whole, _, last = whole.rpartition(".")
        if not whole:
            return None
        rest = f".{last}{rest}"
    return RENAMED[whole] + rest


class MovedFinder(MetaPathFinder):
    """Finds modules by their old names. Belongs at the end of `sys.meta_path`: only what nobody else finds has
    moved.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - a finder's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec of a module that has moved, so that its old name imports it; None for any other name.

        Warns with a `DeprecationWarning` that names the new one.
        """
        name = new_name(fullname)
        found = None if name is None else find_spec(name)
        if name is None or found is None:
            return None
        warnings.warn(f"{fullname} is {name} now, and its old name ends with the next release", DeprecationWarning, 2)
        if name.endswith(".__main__"):
            return spec_from_file_location(fullname, found.origin)
        return ModuleSpec(fullname, _Alias(name, found), is_package=found.submodule_search_locations is not None)


class _Alias(Loader):
    """Gives the module itself, which stays what it is."""

    def __init__(self, name: str, spec: ModuleSpec) -> None:
        self._name, self._spec = name, spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - a loader's signature
        module = importlib.import_module(self._name)
        self._spec = module.__spec__ or self._spec
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system put that of the old name there
