"""The rules that `make check` holds notice what breaks them."""

from pathlib import Path

import pytest

from tests.support import house_rules
from tests.support.house_rules import MOST_ENTRIES, problems

BROKEN = {
    "two classes": ({"a.py": "class Twice: ...", "b.py": "class Twice: ..."}, "class Twice stands in a.py, b.py"),
    "short": ({"a.py": 'def f():\n    """What it is."""'}, "a.py:1: f: 'What it is.' says too little"),
    "short, of a method": ({"a.py": 'class C:\n    def f(self):\n        """Its name."""'}, "a.py:2: C.f: 'Its name.'"),
    "a word of ours": ({"a.py": "def bury(): ..."}, "a.py:1: bury: use the field's word"),
    "a field": ({"a.py": "class C:\n    house: int"}, "a.py:1: C.house: use the field's word"),
    "crowded": ({f"room/m{n}.py": "" for n in range(MOST_ENTRIES + 1)}, f"room: {MOST_ENTRIES + 1} entries"),
}


def test_the_house_keeps_its_rules() -> None:
    assert problems() == []


@pytest.mark.parametrize("kind", BROKEN)
def test_what_breaks_a_rule_is_named(kind: str, tmp_path: Path) -> None:
    files, message = BROKEN[kind]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (found,) = problems(tmp_path)
    assert found.startswith(message)


def test_what_is_private_or_an_alias_breaks_none(tmp_path: Path) -> None:
    text = 'class _Twice: ...\nclass C:\n    """Says what it is well enough."""\nConfig = C\n'
    text += 'def _f():\n    """Its name."""'
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(text.replace("class C", f"class C{name[0]}").replace("= C", f"= C{name[0]}"))
    assert problems(tmp_path) == []
    assert house_rules.SOURCE.is_dir()
