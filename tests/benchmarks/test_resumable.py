"""Results are kept by key and made again when, and only when, a file they depend on changed."""

from pathlib import Path

from benchmarks.resumable import Store


def test_what_was_made_is_kept_until_a_source_changes(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    source = tmp_path / "code" / "one.py"
    source.write_text('"""A number."""\n\n1')
    calls = []

    def made(key: str) -> int:
        store = Store(tmp_path / "results.json", tmp_path)  # as another process would
        return store.made(key, ["code"], lambda: calls.append(key) or len(calls))

    assert [made("a"), made("a"), made("b")] == [1, 1, 2]
    source.write_text('"""One, as it was."""\n1  # of all numbers\n')
    assert [made("a"), made("b")] == [1, 2]
    source.write_text('"""A number."""\n\n2')
    assert [made("a"), made("a")] == [3, 3]
    store = Store(tmp_path / "results.json", tmp_path)
    assert not store.is_current("b", ["code"])
    (tmp_path / "code" / "two.py").write_text("")
    assert not Store(store.path, tmp_path).is_current("a", ["code"])


def test_results_of_keys_that_are_no_more_go(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("")
    store = Store(tmp_path / "results.json", tmp_path)
    store.made("a", ["one.py"], lambda: 1)
    store.made("b", ["one.py"], lambda: {"x": [1]})
    store.keep(["b"])
    assert Store(store.path, tmp_path).values() == {"b": {"x": [1]}}


CODE = """
class One:
    {}

    def number(self):
        {}
        return {}

    async def later(self):
        {}
"""


def test_docstrings_of_all_kinds_do_not_count_and_other_texts_do(tmp_path: Path) -> None:
    def digest(*parts: str) -> str:
        (tmp_path / "one.py").write_text(CODE.format(*parts))
        return Store(tmp_path / "results.json", tmp_path).digest(["one.py"])

    first = digest('"a"', '"b"', '"c"', '"d"')
    assert digest('"x"', '"""y"""', '"c"', '"z"') == first
    assert digest('"a"', '"b"', '"other"', '"d"') != first
    assert digest('"a"', '"b"', "None", '"d"') != first


def test_the_digest_of_code_is_the_same_in_every_python(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f(a, *, b=1):\n    return [a, b, {}, None]\n")
    found = Store(tmp_path / "results.json", tmp_path).digest(["one.py"])
    assert found == "08a2f5144e200647cc7a3a073ec4eabd3b8e6b961340f1a7678794981e7d6d84"
