"""Texts and captions that are good in other words, or good in part."""

import numpy as np
import pytest

from loomrl.gym.domains import get_domain
from loomrl.gym.domains.language.judging import words
from loomrl.gym.domains.multimodal.captions import caption, judge
from loomrl.gym.domains.multimodal.pictures import COLOURS, SHAPES, Thing, draw_things, render
from loomrl.gym.tasks import Task

LANGUAGE = get_domain("language")


def language_task(kind: str, level: int = 3, seed: int = 0) -> Task:
    return LANGUAGE.generate(np.random.default_rng(seed), level, [kind])


def test_punctuation_and_letters_size_do_not_count() -> None:
    for kind in LANGUAGE.kinds:
        task = language_task(kind)
        assert LANGUAGE.score(task, f"  {task.right.rstrip('.').upper()} \n").total == pytest.approx(1.0)


def test_a_summary_with_fewer_words_earns_a_part() -> None:
    task = language_task("summary")
    winner, loser, town = (task.right.split()[place] for place in (1, 4, 9))
    high, low = task.right.split()[5], task.right.split()[7]
    other = LANGUAGE.score(task, f"The {winner} have beaten the {loser} {high} to {low} in {town}")
    assert other.total == 0.0  # what was asked for is who beat whom
    claimed = LANGUAGE.score(task, f"The {winner} easily beat the {loser} {high} to {low} in {town}")
    assert claimed.total == 0.0  # the report says nothing of easily
    booking = language_task("dialogue")
    shorter = LANGUAGE.score(booking, booking.right.replace("Your table", "A table").replace(" on ", " "))
    assert 0.5 < shorter.total < 1.0
    assert shorter.rewards["helpfulness"] == 1.0


def test_a_stale_fact_earns_nothing() -> None:
    task = language_task("dialogue", level=8)
    asked_first = next(line for line in task.prompt.split("\n") if line.startswith("Guest: Good day"))
    day = next(word for word in words(asked_first) if word.endswith("day") and word != "day")
    assert LANGUAGE.score(task, task.right.replace(task.right.split()[6], day.capitalize())).total == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_a_sentence_left_in_english_earns_nothing(seed: int) -> None:
    task = language_task("translation", 7, seed)
    assert LANGUAGE.score(task, task.prompt.partition(": ")[2]).total == 0.0


def test_translations_by_hand() -> None:
    from loomrl.gym.domains.language.translation import ADJECTIVES, PEOPLE, THINGS, Clause, Phrase, _sentence

    man, letter, dog = PEOPLE[0], THINGS[6], THINGS[3]
    red, small = ADJECTIVES[0], ADJECTIVES[1]
    clauses = [
        Clause(Phrase(man, (small,)), 0, Phrase(letter, (red,))),
        Clause(Phrase(man, ()), 1, Phrase(dog, (small,))),
    ]
    assert _sentence(clauses, 0, None) == "The small man sees the red letter and the man buys the small dog."
    assert _sentence(clauses, 0, 0) == "Der kleine Mann sieht den roten Brief und der Mann kauft den kleinen Hund."
    assert _sentence(clauses, 0, 1) == "Le petit homme voit la lettre rouge et l'homme achète le petit chien."
    assert _sentence(clauses, 0, 2) == "El hombre pequeño ve la carta roja y el hombre compra el perro pequeño."


THINGS_DRAWN = [Thing("red", "circle", 0), Thing("blue", "square", 4)]


@pytest.mark.parametrize(
    ("answer", "rewards"),
    [
        ("A red circle at the top left, a blue square in the middle centre.", (1.0, 1.0, 1.0)),
        ("there is a red circle at the top left, and a blue square", (1.0, 0.5, 1.0)),
        ("a blue square, a red circle", (1.0, 0.0, 0.0)),
        ("a red circle, a blue square", (1.0, 0.0, 1.0)),
        ("a red circle at the top right, a blue square", None),
        ("a red circle", None),
        ("a red circle, a red circle, a blue square", None),
        ("a red circle, a blue square, a white cross", None),
        ("a red circle and a blue square", None),
    ],
)
def test_captions(answer: str, rewards: tuple[float, float, float] | None) -> None:
    expected = None if rewards is None else dict(zip(("accuracy", "detail", "coherence"), rewards, strict=True))
    assert judge(THINGS_DRAWN, answer) == expected


def test_pictures_hold_what_they_should() -> None:
    rng = np.random.default_rng(0)
    for count in range(1, 9):
        things = draw_things(rng, count)
        picture = render(things, rng)
        assert len({thing.name for thing in things}) == len({thing.place for thing in things}) == count
        for thing in things:
            row, column = divmod(thing.place, 3)
            centre = picture[11 + 21 * row, 11 + 21 * column]
            assert tuple(centre) == COLOURS[thing.colour]
        assert judge(things, caption(things)) is not None


def test_shapes_look_different() -> None:
    pictures = {render([Thing("red", shape, 4)], np.random.default_rng(1)).tobytes() for shape in SHAPES}
    assert len(pictures) == len(SHAPES)


def test_without_the_picture_the_number_of_things_is_a_guess() -> None:
    pictures = get_domain("multimodal")
    drawn = [pictures.generate(np.random.default_rng(seed), 3, ["question"]) for seed in range(100)]
    counts = [task.right for task in drawn if task.prompt.startswith("How many things are in")]
    assert max(counts.count(number) for number in set(counts)) < len(counts) / 2
