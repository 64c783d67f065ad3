"""Judging a text: what it must say, what it must not say, and how near it is to a good one by standard metrics.

Metrics alone can be had by repeating the prompt or shuffling words, and one word denies a whole sentence. So they count
only where all that was asked for is said, in its order, nothing is added to a good text, and few words are used.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from loomrl.gym.tasks import Rewards, Task

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_BETWEEN_WORDS = re.compile(r"[ .,!]*")  # a question mark, a minus or brackets would change what is said
_ARTICLES = frozenset(("a", "an", "the"))
_LEAST_CHRF, _FULL_CHRF = 60.0, 90.0
_LEAST_ROUGE = 0.7


def judge(task: Task, answer: str) -> Rewards | None:
    """`relevance`, `coherence` and `helpfulness`, 0 to 1, or None for a text that does not do what was asked.

    Facts of a task: `references`, good texts; `required`, words in their order; `max_words`.
    """
    text = unicodedata.normalize("NFC", answer.strip())
    facts = task.facts
    found = words(text)
    if len(text) > 1_000 or not _BETWEEN_WORDS.fullmatch(_WORD.sub("", text)):
        return None
    if len(found) > facts["max_words"] or not _in_order(facts["required"], found):
        return None
    if all(_adds(found, words(reference)) for reference in facts["references"]):
        return None
    said = " ".join(found)
    references = [" ".join(words(reference)) for reference in facts["references"]]
    scores = [(_chrf(said, reference), _rouge_l(said, reference)) for reference in references]
    chrf, rouge = max(scores)
    if chrf < _LEAST_CHRF or rouge < _LEAST_ROUGE:
        return None
    relevance = min(1.0, (chrf - _LEAST_CHRF) / (_FULL_CHRF - _LEAST_CHRF))
    return {"relevance": relevance, "coherence": rouge, "helpfulness": 1.0}


def words(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return [word.replace("’", "'") for word in _WORD.findall(text.casefold())]


def _in_order(required: Sequence[str], found: Sequence[str]) -> bool:
    """Whether all required words occur, each as often as it is required, one after the other."""
    rest = iter(found)
    return all(word in rest for word in required)


def _adds(found: Sequence[str], reference: Sequence[str]) -> bool:
    """Whether a text has words, other than articles, that a good one has not, or has them more often."""
    return bool((Counter(found) - Counter(reference)).keys() - _ARTICLES)


def _chrf(text: str, reference: str) -> float:
    """Character n-gram F-score (Popović 2015), 0 to 100."""
    import sacrebleu

    return float(sacrebleu.sentence_chrf(text, [reference]).score)


def _rouge_l(text: str, reference: str) -> float:
    """ROUGE-L (Lin 2004): F-score of the longest common subsequence of words."""
    return float(_scorer().score(reference, text)["rougeL"].fmeasure)


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Words())


class _Words:
    """Our own words: those of rouge-score have no letters but a to z."""

    def tokenize(self, text: str) -> list[str]:
        """Its words."""
        return words(text)
