"""The MLflow registry and tracking server, as the rest of LoomRL sees them. The one package that touches MLflow.

A registered model per policy; each version holds one export folder, is never changed, and is verified when read.
Only the aliases `champion`, `challenger` and `previous` move. Reading needs no more than `mlflow-skinny` (with
SQLAlchemy and alembic, which LoomRL has anyway, where the tracking URI is a database).
"""

from loomrl.storage.registry.files import PolicyVersion, export_digest, local_source, verify_version
from loomrl.storage.registry.runs import (
    Metric,
    find_run,
    finish_run,
    log_artifacts,
    log_metrics_batch,
    log_values,
    set_tags,
    start_run,
)
from loomrl.storage.registry.versions import CHALLENGER, CHAMPION, PREVIOUS, Registry

__all__ = [
    "CHALLENGER",
    "CHAMPION",
    "PREVIOUS",
    "Metric",
    "PolicyVersion",
    "Registry",
    "export_digest",
    "find_run",
    "finish_run",
    "local_source",
    "log_artifacts",
    "log_metrics_batch",
    "log_values",
    "set_tags",
    "start_run",
    "verify_version",
]
