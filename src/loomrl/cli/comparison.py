"""`loomrl compare`."""

from typing import TYPE_CHECKING, Annotated

import typer

from loomrl.cli.output import print_json, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from loomrl.promotion.comparison.compare import VersionComparison
    from loomrl.promotion.comparison.off_policy.report import OffPolicyReport


def register(app: typer.Typer) -> None:
    """Add the command to the top level."""
    app.command("compare")(compare)


def compare(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="A policy's name, for example cartpole.")],
    champion: Annotated[str, typer.Argument(metavar="CHAMPION", help="A version's number, or an alias.")],
    challenger: Annotated[str, typer.Argument(metavar="CHALLENGER", help="A version's number, or an alias.")],
    on: Annotated[
        str | None, typer.Option("--on", metavar="QUANTITY", help="reward, cost or limits.NAME; all if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON document instead of the tables.")] = False,
) -> None:
    """Compare two versions by the audit log: episodes of both, and what the champion's decisions say of the other."""
    from loomrl.promotion.comparison.compare import compare_versions
    from loomrl.runs.config import load_config
    from loomrl.storage.registry import Registry
    from loomrl.system.home import config_file

    config, registry = load_config(config_file(policy)), Registry()
    versions = registry.require(policy, champion), registry.require(policy, challenger)
    found = compare_versions(config, registry, *versions, on)
    found.write(found.path)
    if as_json:
        print_json(found.to_json())
    else:
        compared = config.promotion.comparison
        _print(found, gives_up=compared is not None and compared.longest_episode_seconds is not None)


def _print(found: "VersionComparison", *, gives_up: bool) -> None:
    from loomrl.system.terminal import PlainConsole

    console, report = PlainConsole(), found.off_policy
    console.print(_live_table(found))
    for line in _live_lines(found, gives_up=gives_up):
        console.print(line, highlight=False, soft_wrap=True)
    for quantity, reason in found.live.not_compared.items():
        console.print(f"{quantity} is not compared: {reason}", highlight=False)
    console.print(_off_policy_table(report))
    for line in _off_policy_lines(report):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"written: {found.path}", highlight=False, soft_wrap=True)


def _live_table(found: "VersionComparison") -> "Table":
    live = found.live
    title = f"{found.policy}: version {live.challenger_version} beside {live.champion_version}, live"
    together = f"difference, {live.confidence:.0%} together"
    rows = []
    for one in live.differences:
        means = (_number(one.champion_mean), _number(one.challenger_mean))
        agents, bounds = f"{one.num_champion} + {one.num_challenger}", f"{one.low:+.4g} to {one.high:+.4g}"
        rows.append((one.quantity, *means, agents, str(one.num_unfinished), bounds, one.finding))
    return table_of(("quantity", "champion", "challenger", "agents", "unfinished", together, "finding"), rows, title)


def _live_lines(found: "VersionComparison", *, gives_up: bool) -> list[str]:
    """`gives_up`: whether episodes that do not end are given up some time."""
    live = found.live
    lines = [f"logs read: {', '.join(live.logs) or 'none'}; experiments: {', '.join(live.experiments) or 'none'}"]
    waiting = max((one.num_unfinished for one in live.differences if one.differs is None), default=0)
    if waiting and not gives_up:
        lines.append(
            f"agents whose value is not known yet: {waiting}; one that hangs may keep it undecided for ever, unless "
            "`promotion.comparison.longest_episode_seconds` gives up what lasts twice as long"
        )
    return lines if live.refused is None else [*lines, f"nothing is claimed: {live.refused}"]


def _off_policy_table(report: "OffPolicyReport") -> "Table":
    title = f"what version {report.challenger_version} would earn, by the log of {report.champion_version}"
    rows = []
    for one in report.estimates:
        low = _number(one.low) if one.low is not None else one.no_bound
        value = "refused" if one.refused else _number(one.value)
        rows.append((one.estimator, value, _number(one.standard_error), one.refused or low))
    return table_of(("estimator", "mean return", "standard error", f"lower {report.confidence:.0%} bound"), rows, title)


def _off_policy_lines(report: "OffPolicyReport") -> list[str]:
    who = f"{report.num_episodes} episodes of {report.num_agents} agents"
    lines = [f"{who}, {report.num_decisions} decisions, both versions {report.acting}"]
    lines += [f"left out: {number} episodes, {reason}" for reason, number in report.left_out.items()]
    lines += [f"not seen whole: {number} episodes, {reason}" for reason, number in report.incomplete.items()]
    if report.effective_sample_size is not None:
        lines.append(
            f"worth {report.effective_sample_size:.1f} episodes of the challenger's own; mean weight "
            f"{report.mean_weight:.3g}, 1 where the log shows all it would do"
        )
    if report.refused:
        lines.append(f"refused: {report.refused}")
    if (gain := report.improvement) is not None:
        bounds = f"lower {report.confidence:.0%} bound {_number(gain.low)}, upper {_number(gain.high)}"
        lines.append(f"more than the champion, acting in the same way: {gain.value:+.4g}, {bounds}")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
