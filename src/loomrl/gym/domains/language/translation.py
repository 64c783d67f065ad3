"""Translation of words, and of sentences a grammar makes, into German, French and Spanish."""

from typing import NamedTuple

import numpy as np

from loomrl.gym.domains.language.judging import words
from loomrl.gym.tasks import Draft, Kind

LANGUAGES = ("German", "French", "Spanish")


class Noun(NamedTuple):
    """A noun in English, German, French and Spanish; genders m, f, n."""

    english: str
    german: str
    german_gender: str
    french: str
    french_gender: str
    spanish: str
    spanish_gender: str


class Adjective(NamedTuple):
    """An adjective: English, the German stem, French and Spanish forms for m and f; whether French puts it before."""

    english: str
    german: str
    french: tuple[str, str]
    spanish: tuple[str, str]
    french_before: bool = False


PEOPLE = (
    Noun("man", "Mann", "m", "homme", "m", "hombre", "m"),
    Noun("woman", "Frau", "f", "femme", "f", "mujer", "f"),
    Noun("child", "Kind", "n", "enfant", "m", "niño", "m"),
    Noun("teacher", "Lehrer", "m", "professeur", "m", "profesor", "m"),
    Noun("friend", "Freund", "m", "copain", "m", "amigo", "m"),
    Noun("doctor", "Arzt", "m", "médecin", "m", "médico", "m"),
)
THINGS = (
    Noun("house", "Haus", "n", "maison", "f", "casa", "f"),
    Noun("book", "Buch", "n", "livre", "m", "libro", "m"),
    Noun("table", "Tisch", "m", "table", "f", "mesa", "f"),
    Noun("dog", "Hund", "m", "chien", "m", "perro", "m"),
    Noun("bread", "Brot", "n", "pain", "m", "pan", "m"),
    Noun("garden", "Garten", "m", "jardin", "m", "jardín", "m"),
    Noun("letter", "Brief", "m", "lettre", "f", "carta", "f"),
    Noun("lamp", "Lampe", "f", "lampe", "f", "lámpara", "f"),
)
ADJECTIVES = (
    Adjective("red", "rot", ("rouge", "rouge"), ("rojo", "roja")),
    Adjective("small", "klein", ("petit", "petite"), ("pequeño", "pequeña"), french_before=True),
    Adjective("big", "groß", ("grand", "grande"), ("grande", "grande"), french_before=True),
    Adjective("black", "schwarz", ("noir", "noire"), ("negro", "negra")),
    Adjective("green", "grün", ("vert", "verte"), ("verde", "verde")),
    Adjective("blue", "blau", ("bleu", "bleue"), ("azul", "azul")),
)
VERBS = (
    ("sees", "sieht", "voit", "ve"),
    ("buys", "kauft", "achète", "compra"),
    ("finds", "findet", "trouve", "encuentra"),
    ("sells", "verkauft", "vend", "vende"),
    ("has", "hat", "a", "tiene"),
    ("takes", "nimmt", "prend", "toma"),
)
_CONJUNCTIONS = (("and", "und", "et", "y"), ("but", "aber", "mais", "pero"))


class Phrase(NamedTuple):
    """A noun with its adjectives, not yet in any one language."""

    noun: Noun
    adjectives: tuple[Adjective, ...]


class Clause(NamedTuple):
    """Somebody does something to something; the verb by its number."""

    subject: Phrase
    verb: int
    thing: Phrase


def translation(rng: np.random.Generator, level: int) -> Draft:
    """A task: translate one clause, from level 3 on with adjectives, from level 6 on two clauses."""
    language = int(rng.integers(len(LANGUAGES)))
    clauses = [_clause(rng, level) for _ in range(2 if level >= 6 else 1)]
    conjunction = int(rng.integers(len(_CONJUNCTIONS)))
    right = _sentence(clauses, conjunction, language)
    wrong = [_sentence(_altered(clauses, rng), conjunction, language) for _ in range(6)]
    english = _sentence(clauses, conjunction, None)
    facts = {"references": [right], "required": words(right), "max_words": len(words(right))}
    others = [one for one in dict.fromkeys(wrong) if one != right]
    return Draft(f"Translate into {LANGUAGES[language]}: {english}", right, [*others, english], facts)


def word(rng: np.random.Generator, level: int) -> Draft:  # noqa: ARG001
    """A task: translate a noun. The prompt is bare, so that the smallest policies can learn it."""
    nouns = [*PEOPLE, *THINGS]
    noun, language = nouns[int(rng.integers(len(nouns)))], int(rng.integers(len(LANGUAGES)))
    names = ("german", "french", "spanish")
    right: str = getattr(noun, names[language])
    others = [getattr(other, name) for other in nouns for name in names]
    wrong = list(dict.fromkeys(other for other in others if other.casefold() != right.casefold()))
    facts = {"references": [right], "required": words(right), "max_words": 1}
    drawn = [wrong[index] for index in rng.permutation(len(wrong))[:6]]
    return Draft(f"{noun.english} in {LANGUAGES[language]}=", right, drawn, facts)


def _clause(rng: np.random.Generator, level: int) -> Clause:
    most = 0 if level < 3 else 1
    subject = Phrase(PEOPLE[int(rng.integers(len(PEOPLE)))], _adjectives(rng, most if level >= 5 else 0))
    thing = Phrase(THINGS[int(rng.integers(len(THINGS)))], _adjectives(rng, most))
    return Clause(subject, int(rng.integers(len(VERBS))), thing)


def _adjectives(rng: np.random.Generator, count: int) -> tuple[Adjective, ...]:
    return tuple(ADJECTIVES[index] for index in rng.permutation(len(ADJECTIVES))[:count])


def _altered(clauses: list[Clause], rng: np.random.Generator) -> list[Clause]:
    """With another noun or verb in one clause."""
    place = int(rng.integers(len(clauses)))
    clause = clauses[place]
    if rng.integers(2):
        others = [noun for noun in THINGS if noun != clause.thing.noun]
        changed = clause._replace(thing=clause.thing._replace(noun=others[int(rng.integers(len(others)))]))
    else:
        changed = clause._replace(verb=(clause.verb + int(rng.integers(1, len(VERBS)))) % len(VERBS))
    return [*clauses[:place], changed, *clauses[place + 1 :]]


def _sentence(clauses: list[Clause], conjunction: int, language: int | None) -> str:
    """In English where `language` is None."""
    number = 0 if language is None else language + 1
    joined = f" {_CONJUNCTIONS[conjunction][number]} ".join(_said(clause, number) for clause in clauses)
    return joined[0].upper() + joined[1:] + "."


def _said(clause: Clause, number: int) -> str:
    subject, thing = (_PHRASES[number](clause.subject, False), _PHRASES[number](clause.thing, True))
    return f"{subject} {VERBS[clause.verb][number]} {thing}"


def _english(phrase: Phrase, _: bool) -> str:
    return " ".join(["the", *(one.english for one in phrase.adjectives), phrase.noun.english])


def _german(phrase: Phrase, is_object: bool) -> str:
    """Articles and weak endings of nominative and accusative."""
    gender = phrase.noun.german_gender
    masculine_object = gender == "m" and is_object
    article = "den" if masculine_object else {"m": "der", "f": "die", "n": "das"}[gender]
    ending = "en" if masculine_object else "e"
    return " ".join([article, *(one.german + ending for one in phrase.adjectives), phrase.noun.german])


def _french(phrase: Phrase, _: bool) -> str:
    gender = 0 if phrase.noun.french_gender == "m" else 1
    before = [one.french[gender] for one in phrase.adjectives if one.french_before]
    after = [one.french[gender] for one in phrase.adjectives if not one.french_before]
    rest = " ".join([*before, phrase.noun.french, *after])
    return f"l'{rest}" if rest[0] in "aeiouéh" else f"{('le', 'la')[gender]} {rest}"


def _spanish(phrase: Phrase, _: bool) -> str:
    gender = 0 if phrase.noun.spanish_gender == "m" else 1
    return " ".join([("el", "la")[gender], phrase.noun.spanish, *(one.spanish[gender] for one in phrase.adjectives)])


_PHRASES = (_english, _german, _french, _spanish)
KINDS = {"word": Kind(0, word), "translation": Kind(2, translation)}
