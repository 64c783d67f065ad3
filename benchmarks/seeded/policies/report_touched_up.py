"""The evaluation's mean return was raised by hand."""

from loomrl.evaluation.evaluate import REPORT

BLOCKED_BY = "provenance"


def tamper(folders):
    path = folders.evaluation / REPORT
    path.write_text(path.read_text().replace('"estimate": ', '"estimate": 1'))
