"""Learning curves for the report, from training's `curves.json`."""

import math
from collections.abc import Sequence
from typing import Any

from loomrl.runs.report.document import Curve, Series

# Metric -> title and what a reader looks for; in the order the charts stand.
PANELS = {
    "accuracy": ("Accuracy", "Share of exploring answers that earn the full reward; in a warm start of greedy ones."),
    "supervised_loss": ("Supervised loss", "Of right answers, in the warm start before rewards are learnt from."),
    "entropy": ("Entropy", "How undecided the policy is; should fall slowly, not collapse."),
    "approx_kl": ("Approximate KL", "How far one update moves the policy."),
    "value_loss": ("Value loss", "Error of the value estimate."),
    "td_error": ("TD error", "Mean distance of values from their targets; should settle."),
    "q_value": ("Q value", "Mean value of the actions that were replayed; should converge, not grow without end."),
    "critic_loss": ("Critic loss", "Half the squared TD error, summed over the twin critics."),
    "temperature": ("Temperature", "How much entropy counts beside the reward."),
    "policy_loss": ("Policy loss", "The clipped surrogate objective, negated."),
    "clip_fraction": ("Clip fraction", "Share of samples where the ratio was clipped."),
    "explained_variance": ("Explained variance", "1: the value estimate explains the returns; 0: it does not."),
}


def read_curves(document: Any, reward_threshold: float | None) -> list[Curve]:
    """Charts from `{"updates": [row...], "validations": [row...]}`; a row is a flat dict with its `step`.

    The returns come first, then the other metrics in the order of `PANELS`; those that no row has are left out.
    `reward_threshold` is drawn as a line in the first; None: no line.

    Raises:
        KeyError, TypeError, ValueError: when the document is none of this form.
    """
    updates, validations = document["updates"], document["validations"]
    returns = [
        series("training", updates, "episode_return"),
        series("validation", validations, "mean_return"),
    ]
    learning = Curve(
        title="Episode return",
        explanation="Mean return of the episodes that ended in an update (training, exploring) and of greedy episodes "
        "(validation).",
        series=[one for one in returns if one.env_steps],
        reference=reward_threshold,
        reference_label="reward threshold",
    )
    successes = Curve(
        title="Success rate",
        explanation="Share of greedy episodes (validation) that reached the success return.",
        series=[series("validation", validations, "success_rate")],
    )
    panels = [
        Curve(title=title, explanation=explanation, series=[series(title, updates, metric)])
        for metric, (title, explanation) in PANELS.items()
    ]
    return [curve for curve in (learning, successes, *panels) if any(one.env_steps for one in curve.series)]


def series(label: str, rows: Sequence[dict[str, Any]], metric: str) -> Series:
    """One metric over the rows that have it; values that are not finite become None."""
    having = [row for row in rows if row.get(metric) is not None]
    values = [float(row[metric]) for row in having]
    return Series(
        label=label,
        env_steps=[int(row["step"]) for row in having],
        values=[value if math.isfinite(value) else None for value in values],
    )
