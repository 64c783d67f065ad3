"""An environment with infinitely many states, as finitely many boxes of them: what may happen at worst.

Its author says where boxes of states may lead (interval arithmetic, at its simplest). The covered part of the space is
cut into a grid of cells. A cell leads, for each action a policy may take somewhere in it, to every cell its outcomes
touch; the worst of these counts. So the probability of ever meeting an unsafe state is bounded from above, for every
state of the first cells (Bacci and Parker, Probabilistic guarantees for safe deep reinforcement learning, FORMATS
2020).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from loomrl.environment.finite.grid_kernels import mark_blocks, worst_values
from loomrl.environment.finite.model import Floats, Ints, Mask
from loomrl.environment.finite.of_environment import demand_bare, shield_around
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.types import Episode

_BATCH = 4_096  # cells asked about at once
_ONE = 1e-9  # how far a sum of probabilities may be from 1
_ULP = 2.0**-52
_ROUNDED = 1e-6
_ENDS = ("low", "high", "initial_low", "initial_high")

Outcome = tuple[float, Floats, Floats]  # a probability, and boxes (M, D) that hold all states it may lead to


@dataclass(frozen=True)
class Abstraction:
    """What an environment tells by `abstraction()`; its observation must be its state, D numbers.

    Boxes are N lows and N highs, (N, D) each. Actions are ranges too, (N, A) lows and highs, equal for a choice of
    actions, where A is 1. An outcome's boxes hold every state that any state of the box may lead to, under any action
    of the range, whatever else is drawn and however it is rounded. Leaving [low, high] counts as unsafe.
    """

    low: Floats  # (D,)
    high: Floats  # (D,)
    initial_low: Floats  # (D,): of the states an episode begins with
    initial_high: Floats  # (D,)
    # Of boxes and ranges of actions, lows and highs each, the outcomes: (probability, lows (N, D), highs (N, D)).
    successors: Callable[[Floats, Floats, Floats, Floats], Sequence[Outcome]]
    unsafe: Callable[[Floats, Floats], Mask]  # which boxes hold an unsafe state, (N,)
    ended: Callable[[Floats, Floats], Mask] | None = None  # in which boxes all states end an episode, safely, (N,)


# Which actions a policy may take in boxes (N, D): M times the number of a box, and a range of actions, (M, A) each.
Possible = Callable[[Floats, Floats], tuple[Ints, Floats, Floats]]


@dataclass(frozen=True)
class WorstCase:
    """At most so likely is an unsafe state met within `steps`; `num_reached` of `num_cells` cells may be visited."""

    probability: float
    steps: int
    num_reached: int
    num_cells: int


class Grid:
    """Closed cells of equal size, numbered with the last component counting fastest. Edges belong to both sides.

    They cover the box from `low` to `high`, (D,), with `counts` cells along each of its D components.
    """

    def __init__(self, low: Floats, high: Floats, counts: Sequence[int]) -> None:
        self.counts = np.asarray(counts, np.int64)  # (D,)
        ends = zip(low.tolist(), high.tolist(), counts, strict=True)
        self._edges = [np.linspace(first, last, count + 1) for first, last, count in ends]

    @property
    def num_cells(self) -> int:
        """The number of cells of the whole grid, over all D components."""
        return math.prod(self.counts.tolist())

    def boxes(self, cells: Ints) -> tuple[Floats, Floats]:
        """Lowest and highest points of cells (N,): two arrays (N, D)."""
        places = np.unravel_index(cells, self.counts.tolist())
        low = [edges[place] for edges, place in zip(self._edges, places, strict=True)]
        high = [edges[place + 1] for edges, place in zip(self._edges, places, strict=True)]
        return np.stack(low, axis=-1), np.stack(high, axis=-1)

    def blocks(self, low: Floats, high: Floats) -> tuple[Ints, Ints, Mask]:
        """Cells that cover boxes (N, D): their first and last place, (N, D); and which boxes reach beyond the grid."""
        first, last = np.empty(low.shape, np.int64), np.empty(low.shape, np.int64)
        outside = np.zeros(len(low), np.bool_)
        for axis, edges in enumerate(self._edges):
            first[:, axis] = np.searchsorted(edges, low[:, axis], side="right") - 1
            last[:, axis] = np.searchsorted(edges, high[:, axis], side="left") - 1
            outside |= (low[:, axis] < edges[0]) | (high[:, axis] > edges[-1])
        first = np.clip(first, 0, self.counts - 1)
        return first, np.clip(last, first, self.counts - 1), outside


@dataclass(frozen=True)
class _Moves:
    """What may follow in some cells: M actions, K outcomes of each."""

    cell: Ints  # (M,)
    shares: Floats  # (K,)
    first: Ints  # (M, K, D)
    last: Ints  # (M, K, D)
    outside: Mask  # (M, K)

    @property
    def rounding(self) -> float:
        """How far a step's sum, and that of its probabilities, may be from the real number."""
        return (len(self.shares) + 3) * _ULP + abs(1.0 - math.fsum(self.shares))


def abstraction_of(env: gymnasium.Env[Any, Any]) -> Abstraction:
    """What an environment's method `abstraction()` tells of boxes of its states, checked, with bounds in float64.

    Raises:
        ConfigError: where it tells nothing, something does not fit, or what is observed is not its state.
    """
    bare: Any = env.unwrapped
    name = type(bare).__name__
    if not callable(getattr(bare, "abstraction", None)):
        raise ConfigError(f"{name} has no method abstraction(), which says where boxes of its states lead")
    demand_bare(env)
    if shield_around(env) is not None:
        raise ConfigError(f"{name} is behind a shield, which its abstraction knows nothing of; leave one of them out")
    found = bare.abstraction()
    if not isinstance(found, Abstraction):
        raise ConfigError(f"{name}: abstraction() gave a {type(found).__name__}, not an Abstraction")
    ends: dict[str, Any] = {key: np.asarray(getattr(found, key), np.float64) for key in _ENDS}
    found = replace(found, **ends)
    size = found.low.size
    if env.observation_space.shape != (size,):
        raise ConfigError(
            f"{name}: its abstraction has {size} components, and a policy observes {env.observation_space}: what is "
            "observed must be the state"
        )
    for key in _ENDS:
        if getattr(found, key).shape != (size,):
            raise ConfigError(f"{name}: abstraction().{key} has shape {getattr(found, key).shape}, not ({size},)")
    with np.errstate(over="ignore", invalid="ignore"):
        is_endless = ~np.isfinite(found.high - found.low)
    for place in np.flatnonzero(is_endless).tolist():
        raise ConfigError(
            f"{name}: abstraction(), component {place}: [{found.low[place]:g}, {found.high[place]:g}] cannot be cut "
            "into cells; cover a finite part, what leaves it counts as unsafe"
        )
    ordered = found.low < found.high
    inside = (found.low <= found.initial_low) & (found.initial_low <= found.initial_high)
    for place in np.flatnonzero(~(ordered & inside & (found.initial_high <= found.high))).tolist():
        raise ConfigError(
            f"{name}: abstraction(), component {place}: [{found.initial_low[place]:g}, {found.initial_high[place]:g}], "
            f"where an episode begins, is no part of [{found.low[place]:g}, {found.high[place]:g}]"
        )
    return found


def demand_held(model: Abstraction, episodes: Sequence[Episode], name: str) -> None:
    """Check that every state that was played lies where the abstraction says, up to a millionth of what it covers: that
    much rounding may do to observations, and to what an environment computes in float32.

    Raises:
        ConfigError: naming the first episode and step that do not; or when outcomes do not fit the boxes.
        EnvironmentFault: when the abstraction's `successors` raises.
    """
    slack = _ROUNDED * (model.high - model.low)
    for episode in episodes:
        low, high = episode.obs - slack, episode.obs + slack
        next_low, next_high = episode.next_obs - slack, episode.next_obs + slack
        if not ((low[0] <= model.initial_high) & (high[0] >= model.initial_low)).all():
            raise _missed(name, episode, 0, "it begins with", "initial_low and initial_high", episode.obs)
        if model.ended is not None:
            for step in np.flatnonzero(_mask(model.ended(low, high), len(low), "ended")).tolist():
                raise _missed(name, episode, step, "it goes on after", "ended", episode.obs)
        action = episode.action.reshape(len(low), -1).astype(np.float64)
        held = np.zeros(len(low), np.bool_)
        for _, begin, end in _outcomes(model, low, high, action, action):
            held |= ((begin <= next_high) & (end >= next_low)).all(axis=1)
        for step in np.flatnonzero(~held).tolist():
            raise _missed(name, episode, step, "a step leads to", "successors", episode.next_obs)


def _missed(name: str, episode: Episode, step: int, what: str, part: str, obs: NDArray[Any]) -> ConfigError:
    state = [float(f"{number:.7g}") for number in obs[step].tolist()]
    return ConfigError(
        f"{name}: in step {step} of the episode of seed {episode.seed} {what} {state}, which abstraction().{part} says "
        "does not happen; its boxes must hold all that does"
    )


def worst_case(model: Abstraction, counts: Sequence[int], possible: Possible, steps: int) -> WorstCase:
    """Bound from above how likely an unsafe state is met within so many steps, on a grid of `counts` cells along each
    component. `possible` says which actions the policy may take in boxes.

    Raises:
        ConfigError: when outcomes do not fit the boxes, or their probabilities do not sum to 1.
        EnvironmentFault: when the abstraction's `successors` raises.
    """
    grid = Grid(model.low, model.high, counts)
    first, last, _ = grid.blocks(model.initial_low[None], model.initial_high[None])
    initial = np.zeros(grid.num_cells, np.bool_)
    mark_blocks(grid.counts, first[:, None], last[:, None], initial)
    moves, unsafe, reached = _explore(model, grid, possible, initial, steps)
    value = unsafe.astype(np.float64)
    for _ in range(steps):
        after = value.copy()
        for move in moves:
            after[move.cell] = 0.0
        for move in moves:
            worst_values(grid.counts, move.cell, move.shares, move.first, move.last, move.outside, value, after)
        if np.array_equal(after, value):
            break
        value = after
    bound = float(value[initial].max())
    if bound > 0.0:  # 0 is exact: no path leads to anything unsafe
        bound = min(1.0, bound + steps * max((move.rounding for move in moves), default=0.0))
    return WorstCase(bound, steps, int(reached.sum()), grid.num_cells)


def _explore(
    model: Abstraction, grid: Grid, possible: Possible, initial: Mask, steps: int
) -> tuple[list[_Moves], Mask, Mask]:
    """The moves of all cells that may be visited before the last step; which cells are unsafe, and which visited."""
    reached, unsafe = initial.copy(), np.zeros(len(initial), np.bool_)
    moves: list[_Moves] = []
    waiting = np.flatnonzero(initial)
    for step in range(steps + 1):
        before = reached.copy()
        for start in range(0, len(waiting), _BATCH):
            cells = waiting[start : start + _BATCH]
            low, high = grid.boxes(cells)
            unsafe[cells] = _mask(model.unsafe(low, high), len(cells), "unsafe")
            over = unsafe[cells]
            if model.ended is not None:
                over = over | _mask(model.ended(low, high), len(cells), "ended")
            going = ~over
            if step < steps and going.any():
                move = _moves(model, grid, possible, cells[going], low[going], high[going])
                mark_blocks(grid.counts, move.first, move.last, reached)
                moves.append(move)
        waiting = np.flatnonzero(reached & ~before)
        if not len(waiting):
            break
    return moves, unsafe, reached


def _moves(model: Abstraction, grid: Grid, possible: Possible, cells: Ints, low: Floats, high: Floats) -> _Moves:
    owner, least, most = possible(low, high)
    outcomes = _outcomes(model, low[owner], high[owner], least, most)
    shares = np.array([share for share, _, _ in outcomes], np.float64)
    blocks = [grid.blocks(begin, end) for _, begin, end in outcomes]
    first, last, outside = (np.stack(part, axis=1) for part in zip(*blocks, strict=True))
    return _Moves(cells[owner], shares, first, last, outside)


def _outcomes(model: Abstraction, low: Floats, high: Floats, least: Floats, most: Floats) -> list[Outcome]:
    """What may follow, checked."""
    try:
        outcomes = list(model.successors(low, high, least, most))
    except Exception as error:
        raise EnvironmentFault(f"abstraction().successors raised {type(error).__name__}: {error}") from error
    shares = np.array([share for share, _, _ in outcomes], np.float64)
    if not len(shares) or not (shares > 0.0).all() or abs(math.fsum(shares) - 1.0) > _ONE:
        raise ConfigError(f"abstraction().successors: probabilities {shares.tolist()} are not positive with the sum 1")
    checked = []
    for share, begin, end in outcomes:
        fits = np.shape(begin) == np.shape(end) == low.shape
        if not fits or not (np.asarray(begin) <= np.asarray(end)).all():
            raise ConfigError(
                f"abstraction().successors, outcome of probability {share:g}: boxes {np.shape(begin)} and "
                f"{np.shape(end)}; wanted are lows and highs {low.shape}, in order and no NaN"
            )
        checked.append((share, np.asarray(begin, np.float64), np.asarray(end, np.float64)))
    return checked


def _mask(found: NDArray[Any], size: int, name: str) -> Mask:
    mask = np.asarray(found)
    if mask.shape != (size,) or mask.dtype != np.bool_:
        raise ConfigError(f"abstraction().{name}: gave {mask.dtype} {mask.shape}; wanted is a boolean for each box")
    return mask
