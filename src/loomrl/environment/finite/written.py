"""A chain in forms other model checkers read: the PRISM language, and PRISM's explicit files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from loomrl.environment.finite.model import Chain, Floats, Ints, States
from loomrl.system.files import write_atomic

CHOSEN = "chosen"  # whether the first of several initial states has been drawn


def prism_text(chain: Chain) -> str:
    """The chain as a dtmc with the variables of its states, and a command for each of them.

    Where it has several initial states, a first step draws one: then every path is one step longer than the chain's.
    """
    return "\n".join(_lines(chain)) + "\n"


def _lines(chain: Chain) -> Iterator[str]:
    states, first = chain.states, np.flatnonzero(chain.states.initial)
    several = len(first) > 1
    prefix = f"{CHOSEN} & " if several else ""
    guards = [prefix + _state(states, index) for index in range(len(states))]
    yield "dtmc"
    yield "module chain"
    for place, name in enumerate(states.variables):
        values, start = states.values[:, place], int(states.values[first[0], place])
        if name in states.booleans:
            yield f"  {name} : bool init {'true' if start else 'false'};"
        else:
            yield f"  {name} : [{values.min()}..{values.max()}] init {start};"
    if several:
        yield f"  {CHOSEN} : bool init false;"
        yield f"  [] !{CHOSEN} -> {_outcomes(states, first, states.initial[first], several)};"
    for state, guard in enumerate(guards):
        row = slice(chain.row_start[state], chain.row_start[state + 1])
        yield f"  [] {guard} -> {_outcomes(states, chain.columns[row], chain.probabilities[row], several)};"
    yield "endmodule"
    for name, mask in sorted(states.labels.items()):
        if name not in ("init", "deadlock"):  # PRISM has labels of these names
            held = " | ".join(f"({guards[state]})" for state in np.flatnonzero(mask).tolist()) or "false"
            yield f'label "{name}" = {held};'
    for name, reward in chain.rewards.items():
        yield f'rewards "{name}"'
        yield "  false : 0;"  # PRISM and Storm refuse rewards without a line
        for state in np.flatnonzero(reward).tolist():
            yield f"  {guards[state]} : {float(reward[state])!r};"
        yield "endrewards"


def _state(states: States, index: int) -> str:
    """A condition that holds in one state."""
    parts = [
        (name if value else f"!{name}") if name in states.booleans else f"{name}={value}"
        for name, value in zip(states.variables, states.values[index].tolist(), strict=True)
    ]
    return " & ".join(parts)


def _outcomes(states: States, columns: Ints, shares: Floats, several: bool) -> str:
    return " + ".join(
        f"{share!r} : {_assigned(states, column, several)}"
        for column, share in zip(columns.tolist(), shares.tolist(), strict=True)
    )


def _assigned(states: States, index: int, several: bool) -> str:
    parts = [
        f"({name}'={('true' if value else 'false') if name in states.booleans else value})"
        for name, value in zip(states.variables, states.values[index].tolist(), strict=True)
    ]
    return " & ".join([*parts, f"({CHOSEN}'=true)"] if several else parts)


def write_explicit(chain: Chain, folder: Path, name: str = "chain") -> list[Path]:
    """Write NAME.sta, NAME.tra, NAME.lab and NAME.REWARDS.srew of all rewards into a folder; returns the files' paths.

    As PRISM's `-importmodel` reads them: https://www.prismmodelchecker.org/manual/Appendices/ExplicitModelFiles

    Raises:
        ArtifactError: when a file cannot be written; those before it are there.
    """
    states = chain.states
    header = "(" + ",".join(states.variables) + ")\n"
    rows = (f"{index}:({','.join(map(str, row))})\n" for index, row in enumerate(states.values.tolist()))
    written = [_write(folder / f"{name}.sta", header + "".join(rows))]
    owner = np.repeat(np.arange(len(states)), np.diff(chain.row_start))
    entries = zip(owner.tolist(), chain.columns.tolist(), chain.probabilities.tolist(), strict=True)
    text = f"{len(states)} {len(chain.columns)}\n" + "".join(f"{row} {to} {share!r}\n" for row, to, share in entries)
    written.append(_write(folder / f"{name}.tra", text))
    labels = {"init": states.initial > 0.0, "deadlock": np.zeros(len(states), np.bool_), **states.labels}
    names = list(labels)
    text = " ".join(f'{index}="{label}"' for index, label in enumerate(names)) + "\n"
    stacked = np.stack([labels[label] for label in names], axis=1)
    for state in np.flatnonzero(stacked.any(axis=1)).tolist():
        text += f"{state}: {' '.join(map(str, np.flatnonzero(stacked[state]).tolist()))}\n"
    written.append(_write(folder / f"{name}.lab", text))
    for rewards, values in chain.rewards.items():
        places = np.flatnonzero(values).tolist()
        text = f"{len(states)} {len(places)}\n" + "".join(f"{place} {float(values[place])!r}\n" for place in places)
        written.append(_write(folder / f"{name}.{rewards}.srew", text))
    return written


def _write(path: Path, text: str) -> Path:
    write_atomic(path, text.encode())
    return path
