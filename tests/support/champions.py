"""Versions that became champion, as a life cycle leaves them."""

import json
from pathlib import Path

from loomrl.promotion import promote
from loomrl.registry import CHAMPION, Registry
from loomrl.serving.config import SERVING
from loomrl.types import PromotionDecision


def promoted(registry: Registry, folder: Path) -> str:
    """A version that has become champion; its monitors take every fifth decision of an episode."""
    champion = registry.aliases("cartpole").get(CHAMPION)
    version = registry.register("cartpole", folder, f"run-{folder.name}")
    registry.set_tag(version, SERVING, json.dumps({"monitors": {"spacing": 5}}))
    decision = PromotionDecision(
        policy="cartpole",
        version=version.version,
        champion_before=champion,
        decision="promoted",
        reasons=["test"],
        rules=[],
        inputs_digest="",
    )
    promote.apply(decision, f"run-{folder.name}", registry)
    return version.version
