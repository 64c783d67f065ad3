"""What each rule of a promotion rests on: what was examined, what that leaves open, what would make it false."""

from loomrl.safety.check import Scope
from loomrl.types import Claim, ClaimLabel, LabelKind, Verdict


def scope_of(claim: Claim) -> Scope:
    """The scope of a rule's claim; that of a rule that had nothing to measure says so.

    Raises:
        KeyError: for a claim that is no rule's.
    """
    if claim.id in _DECIDED:
        return _DECIDED[claim.id]
    if claim.id not in _MEASURED:
        raise KeyError(f"nothing says what the rule {claim.id} rests on: loomrl.promotion.scope must")
    if _examined_nothing(claim):
        return Scope(f"nothing: {claim.statement}", "anything else", "nothing: there was nothing to examine")
    return _MEASURED[claim.id].of(claim)


def label_of(claim: Claim) -> ClaimLabel | None:
    """That a rule's claim is met whatever the version does, where it is proved and nothing was examined for it."""
    if claim.verdict is not Verdict.PROVED or not _examined_nothing(claim):
        return None
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=claim.statement)


def _examined_nothing(claim: Claim) -> bool:
    return claim.id in _MEASURED and claim.num_samples is None


_MORE = "more than those claims, each of which says how far it reaches"
_MEASURED = {
    "not_worse": Scope(
        "{count} pairs of evaluation episodes of the two, on the same seeds",
        "losses so rare that no pair shows them; returns where the world differs from the snapshot",
        "a mean difference whose upper bound is below {limit}; where only the lower one is it stays undecided",
    ),
    "shadow_passed": Scope(
        "the shadow stage's report on {count} decisions: the verdict of each of its mandatory claims",
        _MORE,
        "one of them that is refuted or undecided, or a report that says that it was not passed",
    ),
    "consequences": Scope(
        "the shadow stage's claims about what follows, over {count} episodes: their verdicts",
        _MORE,
        "one of them that is mandatory and refuted; one that is undecided leaves it so",
    ),
    "minimum_decisions": Scope(
        "the number of decisions in the shadow stage's report: {count}",
        "that they were good ones, or like those of production",
        "nothing refutes it: fewer than {limit} decisions leave it undecided",
    ),
    "min_success_rate": Scope(
        "{count} evaluation episodes of the version, and which of them succeeded",
        "success where the world differs from the snapshot, or in another sense than the config's",
        "a rate whose lower bound is below {limit}",
    ),
    "compared_live": Scope(
        "the first {count} agents of the split in production: their rewards, costs and broken limits",
        "later traffic; what is not fed back as reward, cost or observation; agents that were not in the split",
        "a mean difference that is worse than allowed at both its bounds; where it is so at one it stays undecided",
    ),
    "off_policy": Scope(
        "{count} logged episodes of the champion, weighted by how likely the challenger decides so",
        "what follows actions that the champion never takes; episodes longer than the log's",
        "a gain whose upper bound is below {limit}; where only the lower one is, or is missing, it stays undecided",
    ),
}
_DECIDED = {
    "gate_passed": Scope(
        "the signature of the safety case and the digests of the files it names, the chain of cases, whether the "
        "mandatory claims are met, here and on the exported graph, waivers, the attempt's share of the error, parity",
        "more than the case's claims, each of which says how far it reaches",
        "a file that is missing or not what was signed, a version or a chain of cases that is not what was registered, "
        "a mandatory claim that is not met, a claim that does not hold on the exported graph, a waiver that has run "
        "out, claims short of what the attempt demands, or a graph that does not act like the trained network",
    ),
    "not_rolled_back": Scope(
        "the version's tags in the registry",
        "anything about what the policy does",
        "a tag that says that the version was taken back, by a person or by the monitors of a server",
    ),
    "approval": Scope(
        "whether the config asks for a person's approval, and what that person answered",
        "what the person looked at",
        "an approval that is demanded and was rejected; until somebody answers it stays undecided",
    ),
}
