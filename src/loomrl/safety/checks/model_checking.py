"""What the policy does in a finite environment, computed over all states: declared properties in PCTL.

The chain is the environment's finite model with the policy's action in every state. See `loomrl.safety.model_checking`.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loomrl.environment.finite.prism.syntax import Expression
from loomrl.errors import ConfigError
from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.certified.properties import PropertiesConfig, PropertyConfig
from loomrl.safety.certified.regions import refusal
from loomrl.safety.check import MODEL_CHECKING, Context, Demand, Scope
from loomrl.safety.probing.probes import ask, is_recurrent
from loomrl.types import Bound, Claim, ClaimLabel, LabelKind, Policy, Verdict

NAME = "model_checking"
STAGE = MODEL_CHECKING
LOCAL = True  # its chain is made of actions for given observations, which the exported graph is asked for again


class ModelPropertyConfig(PropertyConfig):
    """A property such as `P<=0.01 [ F<=100 "crash" ]`: about labels, variables and rewards of the model."""

    property: str = Field(min_length=1)


ModelCheckingConfig = PropertiesConfig[ModelPropertyConfig]  # none by default: only a finite environment has a model
Config = ModelCheckingConfig  # as all plug-ins of this kind name it


def check_spaces(config: ModelCheckingConfig, observation_space: Any, action_space: Any) -> None:  # noqa: ARG001 - a check's signature
    """Raises `ConfigError` for a property that cannot be read, before anything is trained."""
    for prop in config.properties:
        _parsed(prop)


def check_environment(config: ModelCheckingConfig, snapshot_folder: Path) -> None:
    """Raises `ConfigError` for an environment without a finite model, and for what a property names that the model does
    not have, before anything is trained; and `ArtifactError` where the snapshot was changed."""
    if config.properties:
        _requirements(config, _modelled(snapshot_folder))


def _modelled(snapshot_folder: Path) -> Any:
    from loomrl.environment.finite.of_environment import model_of
    from loomrl.environment.make import make_env

    with closing(make_env(snapshot_folder)) as env:
        return model_of(env)


def examine(context: Context, config: ModelCheckingConfig) -> list[Claim]:
    """One claim for each property of the config, checked on the policy's Markov chain; undecided where it is recurrent.

    Raises:
        ConfigError: when the environment has no finite model, actions are no single choice, or a property cannot be
            read, names what the model does not have, or has no limit.
    """
    if not config.properties:
        return []
    if is_recurrent(context.policy):
        why = "a recurrent policy has more states than its environment's model"
        return [context.undecided(_statement(prop), why, prop.name) for prop in config.properties]
    modelled = _modelled(context.snapshot_folder)
    chain = modelled.chain(_actions(context.policy, context.action_space, modelled.observations))
    return [_claim(context, prop, chain, modelled) for prop in config.properties]


def replay(failure: Failure) -> Replayed:
    """Solve the chain that the policy induces again: reproduced where the property is broken again.

    Raises:
        ArtifactError: when the snapshot was changed.
        ConfigError: when the policy takes an action that the environment does not have.
    """
    prop = ModelPropertyConfig(name="replayed", property=failure.document["property"])
    modelled = _modelled(failure.snapshot_folder)
    chain = modelled.chain(_actions(failure.policy, failure.action_space, modelled.observations))
    answer = _answer(prop, chain)
    finding = _finding(answer, chain)
    if answer.holds is False:
        finding += f", {_broken_from(prop, chain)}"
    return Replayed(reproduced=answer.holds is False, finding=finding)


def scope(config: ModelCheckingConfig, claim: Claim) -> Scope:  # noqa: ARG001 - a check's signature
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"all states of the environment's finite model that this policy can reach: {claim.finding}",
        "that the probabilities of the model are those of the world; the time limit of episodes",
        "a value in the model that breaks a limit of the property, or an initial state that breaks its conditions",
    )


class _Asked(Demand):
    """What a property asks for, which follows from another one by what both mean."""

    def covers(self, other: Demand) -> bool:
        """Whether the property of the other one surely holds where this one's does."""
        mine: Any = self.subject[-1]
        try:
            return isinstance(other, _Asked) and bool(mine.implies(other.subject[-1]))
        except RecursionError:  # their parts stand in each other too deep to say
            return False


def demands(context: Context, config: ModelCheckingConfig) -> dict[str, Demand]:
    """What each property asks for, by claim id; of a single one, and of those that are not examined, nothing."""
    if len(config.properties) < 2 or is_recurrent(context.policy):
        return {}
    found = _requirements(config, _modelled(context.snapshot_folder))
    return {f"{NAME}.{name}": _Asked((NAME, requirement)) for name, requirement in found.items()}


def _requirements(config: ModelCheckingConfig, modelled: Any) -> dict[str, Any]:
    from loomrl.safety.model_checking.implication import Requirement

    found = {}
    for prop in config.properties:
        parsed = _parsed(prop)
        with _named(prop):
            found[prop.name] = Requirement(modelled.model, parsed)
    return found


def _statement(prop: ModelPropertyConfig) -> str:
    return f"in the environment's finite model, under this policy: {prop.property}"


def _actions(policy: Policy, action_space: Any, observations: NDArray[Any]) -> NDArray[Any]:
    actions = np.asarray(ask(policy, observations))
    if actions.ndim != 1:
        raise ConfigError(f"safety.checks.{NAME}: actions are {action_space}; a model needs a choice of actions")
    return actions - int(getattr(action_space, "start", 0))


def _answer(prop: ModelPropertyConfig, chain: Any) -> Any:
    from loomrl.safety.model_checking.pctl import check

    parsed = _parsed(prop)
    with _named(prop):
        return check(chain, parsed)


def _claim(context: Context, prop: ModelPropertyConfig, chain: Any, modelled: Any) -> Claim:
    answer = _answer(prop, chain)
    verdict = {True: Verdict.PROVED, False: Verdict.REFUTED, None: Verdict.UNDECIDED}[answer.holds]
    evidence = {
        "kind": NAME,
        "property": prop.property,
        "num_states": len(chain.states),
        "num_transitions": len(chain.columns),
        "low": _written(answer.low),
        "high": _written(answer.high),
    }
    finding, bound = _finding(answer, chain), None
    if answer.low is not None and answer.high is not None and answer.limit is not None:
        worst = answer.high if answer.relation in ("<", "<=") else answer.low
        if np.isfinite(worst):
            bound = Bound(kind="sound bound", measured=worst, limit=answer.limit, unit="value")
    return context.claim(
        evidence,
        prop.name,
        failure=(f"{prop.property}: {finding}, {_broken_from(prop, chain)}" if verdict is Verdict.REFUTED else None),
        statement=_statement(prop),
        method="the Markov chain the policy induces, solved with bounds of the error that are checked afterwards",
        verdict=verdict,
        assumptions=[
            "the model's probabilities are the environment's, which its author states",
            "a time limit of episodes is no part of the model: a property without F<=n looks beyond it",
        ],
        bound=bound,
        finding=finding,
        label=_label(prop, modelled) if verdict is Verdict.PROVED else None,
    )


def _label(prop: ModelPropertyConfig, modelled: Any) -> ClaimLabel | None:
    """Of a property that holds whichever actions are taken."""
    from loomrl.safety.model_checking.pctl import asks, check_all

    reason = "it is about the states in which episodes begin, and about nothing that a policy does"
    if asks(parsed := _parsed(prop)):
        try:
            whatever = check_all(modelled.model, parsed)
        except ConfigError:  # nothing is known of all policies
            return None
        if not whatever.holds:
            return None
        reason = "whichever actions are taken, each part of it stays on its side of the limit"
        if whatever.low is not None and whatever.high is not None:
            reason = f"whichever actions are taken, the value lies between {whatever.low:.6g} and {whatever.high:.6g}"
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason)


def _finding(answer: Any, chain: Any) -> str:
    told = f"it {'holds' if answer.holds else 'does not hold' if answer.holds is False else 'is open'}"
    if answer.low is not None and answer.high is not None and answer.limit is not None:
        told = f"the value lies between {answer.low:.9g} and {answer.high:.9g}"
    return f"{told} in the chain of {len(chain.states)} states and {len(chain.columns)} transitions"


def _broken_from(prop: ModelPropertyConfig, chain: Any) -> str:
    """The initial state from which a broken property is broken; of several whose expectation counts, how many."""
    from loomrl.safety.model_checking.pctl import states_where

    parsed, initial = _parsed(prop), np.flatnonzero(chain.states.initial > 0.0)
    is_expected = parsed.op in ("probability", "reward_value")
    if is_expected and len(initial) > 1:
        return f"expected over {len(initial)} initial states"
    broken = initial if is_expected else initial[~states_where(chain, parsed).possible[initial]]
    state = ", ".join(f"{name} = {value}" for name, value in chain.states.describe(int(broken[0])).items())
    return f"from the initial state {state}"


def _written(value: float | None) -> float | str | None:
    return value if value is None or np.isfinite(value) else str(value)


def _parsed(prop: ModelPropertyConfig) -> Expression:
    from loomrl.environment.finite.prism.syntax import read_property

    with _named(prop):
        parsed = read_property(prop.property)
        if "=?" in parsed.args:
            raise ConfigError("=? asks for a number; a claim needs a limit, such as P<=0.01 [ ... ]")
    return parsed


@contextmanager
def _named(prop: ModelPropertyConfig) -> Iterator[None]:
    """What is wrong with the property is told with its place in the config."""
    try:
        yield
    except ConfigError as error:
        raise refusal(NAME, "properties", prop.name)(str(error)) from None
    except RecursionError:
        raise refusal(NAME, "properties", prop.name)("its parts stand in each other too deep") from None
