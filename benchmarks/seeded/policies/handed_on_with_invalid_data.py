"""The evaluation's data had not passed its gate, and was handed on all the same."""

from loomrl.evaluation.data_gate import VALIDATION, DataValidation
from loomrl.system.files import write_sums


def tamper(folders):
    path = folders.evaluation / VALIDATION
    DataValidation.read(path).model_copy(update={"success": False, "num_failed": 1}).write(path)
    write_sums(folders.evaluation)
