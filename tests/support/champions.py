"""Versions that became champion, as a life cycle leaves them."""

import sqlite3
from pathlib import Path

from loomrl.promotion import promote
from loomrl.storage.registry import CHAMPION, PREVIOUS, Registry
from loomrl.storage.registry.statements import newest_number, state_champion, state_serving
from loomrl.storage.run_record import now
from loomrl.system.home import home
from loomrl.types import PromotionDecision


def promotion(version: str, before: str | None, policy: str = "cartpole") -> PromotionDecision:
    """That a version is promoted."""
    return PromotionDecision(
        policy=policy,
        version=version,
        champion_before=before,
        decision="promoted",
        reasons=["test"],
        rules=[],
        inputs_digest="",
    )


def promoted(registry: Registry, folder: Path) -> str:
    """A version that has become champion; its monitors take every fifth decision of an episode."""
    champion = registry.aliases("cartpole").get(CHAMPION)
    version = registry.register("cartpole", folder, f"run-{folder.name}")
    state_serving(registry, version, {"monitors": {"spacing": 5}})
    promote.apply(promotion(version.version, champion), f"run-{folder.name}", registry)
    return version.version


def make_champion(registry: Registry, champion: str, policy: str = "cartpole", **aliases: str | None) -> None:
    """Move the alias `champion`, with the statement that a promotion signs; then other aliases."""
    state_champion(
        registry,
        registry.require(policy, champion),
        number=1 + newest_number(registry, policy),
        kind="promotion",
        before=registry.aliases(policy).get(CHAMPION),
        previous=aliases.get("previous") or registry.aliases(policy).get(PREVIOUS),
        run_id="run-test",
        reason="test",
        person=None,
        time=now(),
    )
    registry.set_aliases(policy, {CHAMPION: champion, **aliases})


def put_files(registry: Registry, source: str, target: str) -> None:
    """What an attacker can do: other files, signed as the same policy's, under a number; its statements stay."""
    one, other = registry.require("cartpole", source), registry.require("cartpole", target)
    with sqlite3.connect(home() / "mlflow.db") as database:
        database.execute("UPDATE model_versions SET source = ? WHERE version = ?", (one.source, int(target)))
    database.close()
    for tag in ("loomrl.digest", "loomrl.sums_sha256"):
        registry.set_tag(other, tag, one.tags[tag])
