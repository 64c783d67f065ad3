"""The evaluation's mean return was raised by hand."""

from loomrl.evaluation.evaluate import REPORT


def tamper(folders):
    path = folders.evaluation / REPORT
    before = path.read_text()
    path.write_text(before.replace('"estimate":', '"estimate":1'))
    assert path.read_text() != before
