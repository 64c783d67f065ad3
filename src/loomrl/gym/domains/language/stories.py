"""Question answering, summarisation and dialogue over texts that are made up, so that what they say is known."""

from collections.abc import Sequence

import numpy as np

from loomrl.gym.domains.language.judging import words
from loomrl.gym.tasks import Draft, Kind

_NAMES = ("Anna", "Bruno", "Clara", "David", "Elena", "Farid", "Greta", "Hanno", "Irina", "Jonas", "Karim", "Lena")
_TOWNS = ("Arbel", "Brenna", "Corvin", "Dorlach", "Elmstad", "Fenwick", "Galdor", "Hesper", "Ilmen", "Jorvik")
_COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey")
_THINGS = ("lamp", "bicycle", "coat", "boat", "kite", "violin", "ladder", "basket")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TEAMS = ("Falcons", "Otters", "Wolves", "Herons", "Badgers", "Ravens", "Lynxes", "Foxes")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_FILLERS = (
    "The weather was mild.",
    "Many people had come early.",
    "A band played before noon.",
    "The seats were all taken.",
    "Tea and cake were sold at the gate.",
    "The referee was new to the town.",
    "Children waved flags.",
    "The evening was calm.",
)


def question(rng: np.random.Generator, level: int) -> Draft:
    """A task: answer a question about a text; from level 4 on two facts have to be joined."""
    count = 2 + level // 2
    names, towns = _some(rng, _NAMES, count), _some(rng, _TOWNS, count)
    things, colours = _some(rng, _THINGS, count), [_COLOURS[int(rng.integers(len(_COLOURS)))] for _ in range(count)]
    sentences = [f"{name} lives in {town}." for name, town in zip(names, towns, strict=True)]
    sentences += [f"{name} has a {colour} {thing}." for name, colour, thing in zip(names, colours, things, strict=True)]
    text = " ".join(sentences[index] for index in rng.permutation(len(sentences)))
    about = int(rng.integers(count))
    who = names[about] if level < 4 else f"the person who lives in {towns[about]}"
    asked, right, others = (
        (f"What colour is the {things[about]} of {who}?", colours[about], _COLOURS),
        (
            f"What does {who} have?",
            f"a {colours[about]} {things[about]}",
            [f"a {colours[about]} {thing}" for thing in _THINGS],
        ),
        (f"Who has the {things[about]}?", names[about], _NAMES),
    )[int(rng.integers(3))]
    prompt = f"{text}\n{asked} Answer in as few words as possible."
    wrong = [other for other in others if other != right]
    return Draft(
        prompt, right, _some(rng, wrong, 5), _facts([right], words(right.removeprefix("a ")), len(words(right)))
    )


def summary(rng: np.random.Generator, level: int) -> Draft:
    """A task: summarise the result of a match from a report, with the more asides the higher the level."""
    winner, loser = _some(rng, _TEAMS, 2)
    town, day = _some(rng, _TOWNS, 1)[0], _some(rng, _DAYS, 1)[0]
    low = int(rng.integers(0, 3))
    high = low + int(rng.integers(1, 4))
    scorer = _some(rng, _NAMES, 1)[0]
    told = [
        f"On {day} the {winner} and the {loser} met in {town}.",
        *_some(rng, _FILLERS, min(1 + level, len(_FILLERS))),
        f"{scorer} scored in the last minute.",
        f"When it was over, the {winner} had {_goals(high)} and the {loser} had {_goals(low)}.",
    ]
    prompt = f"{' '.join(told)}\nSummarise in one sentence of at most 12 words who beat whom, by what score, and where."
    references = [
        f"The {winner} beat the {loser} {high} to {low} in {town}.",
        f"{winner} beat {loser} {high} to {low} in {town}.",
    ]
    others = [team for team in _TEAMS if team not in (winner, loser)]
    wrong = [
        f"The {loser} beat the {winner} {high} to {low} in {town}.",
        f"The {winner} beat the {loser} {high + 1} to {low} in {town}.",
        f"The {winner} beat the {others[0]} {high} to {low} in {town}.",
        f"The {winner} met the {loser} in {town}.",
    ]
    return Draft(prompt, references[0], wrong, _facts(references, words(references[1]), max_words=12))


def dialogue(rng: np.random.Generator, level: int) -> Draft:
    """A task: confirm a booking as it stands at the end of a talk, in which it is changed from level 2 on."""
    first, second = _some(rng, _DAYS, 2)
    guests, hour = int(rng.integers(2, 9)), int(rng.integers(5, 10))
    turns = [
        f"Guest: Good day, a table for {_number(guests)} on {first} at {_number(hour)}, please.",
        "Host: With pleasure. Anything else?",
    ]
    day, stale = first, [word for word in _DAYS if word != first]
    if level >= 2:
        turns += [f"Guest: On second thoughts, make it {second}.", "Host: That is possible."]
        day, stale = second, [word for word in _DAYS if word != second]
    if level >= 5:
        guests += int(rng.integers(1, 4))
        turns += [f"Guest: We will be {_number(guests)} by the way.", "Host: I see."]
    if level >= 7:
        hour += 1
        turns += ["Guest: And an hour later suits us better.", "Host: Very well."]
    turns.append("Guest: So what is booked?")
    rule = "Answer as the host: Your table for ... on ... at ... is booked."
    prompt = "\n".join([*turns, rule])

    def said(day: str, guests: int, hour: int) -> str:
        return f"Your table for {_number(guests)} on {day} at {_number(hour)} is booked."

    right = said(day, guests, hour)
    wrong = [said(stale[0], guests, hour), said(day, guests + 1, hour), said(day, guests, hour - 1),
             said(stale[-1], guests + 1, hour + 1)]  # fmt: skip
    required = words(f"table {_number(guests)} {day} {_number(hour)} is booked")
    return Draft(prompt, right, wrong, _facts([right], required, len(words(right)) + 1))


def _facts(references: list[str], required: list[str], max_words: int) -> dict[str, object]:
    return {"references": references, "required": required, "max_words": max_words}


def _some(rng: np.random.Generator, of: Sequence[str], count: int) -> list[str]:
    return [of[index] for index in rng.permutation(len(of))[:count]]


def _goals(number: int) -> str:
    return "1 goal" if number == 1 else f"{number} goals"


def _number(number: int) -> str:
    return _NUMBERS[number - 1]


KINDS = {"question": Kind(0, question), "summary": Kind(1, summary), "dialogue": Kind(0, dialogue)}
