"""The evaluation's data gate had failed, and its verdict was edited."""

from loomrl.evaluation.data_gate import VALIDATION, DataValidation
from loomrl.files import write_sums

BLOCKED_BY = "provenance"


def tamper(folders):
    path = folders.evaluation / VALIDATION
    DataValidation.read(path).model_copy(update={"success": False, "num_failed": 1}).write(path)
    write_sums(folders.evaluation)
