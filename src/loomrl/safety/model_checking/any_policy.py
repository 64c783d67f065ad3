"""What P and R come to whichever actions are taken, with memory or by chance: bounds over all policies of a model.

Where it is 0 or 1 for all, or infinite for some, is decided by graph search, the rest by value iteration: Baier and
Katoen, Principles of Model Checking (2008), section 10.6; for rewards Bertsekas and Tsitsiklis, An analysis of
stochastic shortest path problems (1991). End components, where a policy may stay for ever, are merged into one state
each, which nobody stays in. Where the work would be more than some seconds nothing is said.
"""

from dataclasses import replace

import numpy as np

from loomrl.environment.finite.kernels import gather_rows, mark_reachable
from loomrl.environment.finite.model import FiniteModel, Floats, Ints, Mask
from loomrl.environment.finite.reachability import ProbabilityBounds
from loomrl.safety.model_checking.graph import Graph
from loomrl.safety.model_checking.value_iteration import Decisions

_ABOVE_0 = float(np.nextafter(0.0, 1.0))
_BELOW_1 = float(np.nextafter(1.0, 0.0))


def reachable(model: FiniteModel) -> FiniteModel:
    """The part of a model that can be reached from its initial states, in their order."""
    start, every = model.row_start[model.choice_start], np.ones(len(model.states), np.bool_)  # whichever choice is made
    seen = mark_reachable(start, model.columns, model.states.initial > 0.0, every)
    if seen.all():
        return model
    kept = np.flatnonzero(seen)
    choice_start, choices = gather_rows(model.choice_start, kept)
    row_start, entries = gather_rows(model.row_start, choices)
    return FiniteModel(
        model.states.take(kept),
        choice_start,
        row_start,
        (np.cumsum(seen) - 1)[model.columns[entries]],
        model.probabilities[entries],
        model.actions[choices],
        model.action_names,
        {name: reward[choices] for name, reward in model.rewards.items()},
    )


def until(model: FiniteModel, through: Mask, target: Mask) -> ProbabilityBounds:
    """P(through U target) under any policy; `through` and `target` are masks (S,)."""
    graph = Graph(model)
    can, can_all = graph.some_reach(through, target), graph.all_may_reach(through, target)
    must, nothing = graph.all_reach(through, target), np.zeros(model.num_choices)
    number, size = _numbered(can_all & ~must, must)
    least = Decisions.of(model, number, size, number[graph.owner] < size, nothing, end=-1.0)
    low = -least.most_from(np.zeros(size))
    inside = can & ~must
    merged = graph.end_components(inside[graph.owner] & graph.lead_into(inside))
    if merged is None:
        return _decided(can, can_all, must, low[number], np.ones(len(target)))
    component, stays = merged
    place, size = _numbered(inside, must, component)
    most = Decisions.of(model, place, size, ~stays, nothing, end=1.0)
    return _decided(can, can_all, must, low[number], most.most()[place])


def bounded_until(model: FiniteModel, through: Mask, target: Mask, steps: int) -> ProbabilityBounds:
    """P(through U<=steps target) under any policy."""
    graph = Graph(model)
    can, can_all = graph.some_reach(through, target, steps), graph.all_may_reach(through, target, steps)
    number, size = _numbered(can & ~target, target)
    every, nothing = np.ones(model.num_choices, np.bool_), np.zeros(model.num_choices)
    most = Decisions.of(model, number, size, every, nothing, end=1.0)
    low, high = (way * replace(most, end=way).most_after(np.zeros(size), steps) for way in (-1.0, 1.0))
    return _decided(can, can_all, graph.all_reach_within(through, target, steps), low[number], high[number])


def next_step(model: FiniteModel, target: Mask) -> ProbabilityBounds:
    """P(X target) under any policy."""
    graph = Graph(model)
    may, must = ~graph.lead_into(~target), graph.lead_into(target)  # of a choice
    low, high = _both(model, np.zeros(model.num_choices), target.astype(np.float64), 1)
    return _decided(~graph.every_choice(~may), graph.every_choice(may), graph.every_choice(must), low, high)


def reward_until(model: FiniteModel, reward: Floats, target: Mask) -> ProbabilityBounds:
    """E[what is earned before `target`] under any policy; `reward` is (C,). Infinite for who may miss `target`. Where
    some do, and something can be lost on the way, nothing is said of the least: who waits may lose any amount."""
    graph, every = Graph(model), np.ones(len(target), np.bool_)
    arrive = graph.all_reach(every, target)
    number, size = _numbered(arrive & ~target, ~arrive)
    most = Decisions.of(model, number, size, number[graph.owner] < size, reward, end=np.inf)
    high = most.most()[number]
    if (reward[~target[graph.owner]] < 0.0).any():
        least = replace(most, gain=-most.gain, end=np.inf)
        low = np.where(graph.some_reach(every, target), -least.most()[number], np.inf)
    else:
        low = _least_cost(graph, reward, target)
    return ProbabilityBounds(low, np.maximum(low, high))


def cumulated_reward(model: FiniteModel, reward: Floats, steps: int) -> ProbabilityBounds:
    """E[C<=steps] under any policy; `reward` is (C,)."""
    return ProbabilityBounds(*_both(model, reward, np.zeros(len(model.states)), steps))


def _least_cost(graph: Graph, reward: Floats, target: Mask) -> Floats:
    """No more than what any policy earns before `target`, (S,), where nothing is lost. Who waits where that costs
    nothing does not arrive."""
    surely = graph.some_surely_reach(target)
    inside = surely & ~target
    merged = graph.end_components((reward == 0.0) & inside[graph.owner] & graph.lead_into(inside))
    if merged is None:
        return np.where(surely, 0.0, np.inf)
    component, stays = merged
    number, size = _numbered(inside, ~surely, component)
    least = Decisions.of(graph.model, number, size, ~stays & graph.lead_into(surely), -reward, end=-np.inf)
    return -least.most_from(np.zeros(size))[number]


def _both(model: FiniteModel, reward: Floats, start: Floats, steps: int) -> tuple[Floats, Floats]:
    """The least and the most that is earned in so many steps, and after them as much as `start` (S,)."""
    number, size = _numbered(np.ones(len(start), np.bool_), np.zeros(len(start), np.bool_))
    most = Decisions.of(model, number, size, np.ones(len(reward), np.bool_), reward)
    least = replace(most, gain=-reward)
    return -least.most_after(-start, steps)[number], most.most_after(start, steps)[number]


def _numbered(inside: Mask, end: Mask, component: Ints | None = None) -> tuple[Ints, int]:
    """The number of each state in `Decisions`, (S,), and how many of the states `inside` have choices there: all, or
    one of each component."""
    among = np.arange(len(inside)) if component is None else component
    kept, index = np.unique(among[inside], return_inverse=True)
    number = np.where(end, len(kept) + 1, len(kept))
    number[inside] = index
    return number, len(kept)


def _decided(can: Mask, can_all: Mask, must: Mask, low: Floats, high: Floats) -> ProbabilityBounds:
    """Probabilities, and exactly 0 or 1 where that is known of the graph alone: where some policy can come to it, or
    all, and where all must."""
    low = np.where(must, 1.0, np.where(can_all, np.clip(low, _ABOVE_0, _BELOW_1), 0.0))
    high = np.where(must, 1.0, np.where(can, np.clip(high, _ABOVE_0, 1.0), 0.0))
    return ProbabilityBounds(low, np.maximum(low, high))
