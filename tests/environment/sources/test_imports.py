"""What is read of imports from a file's source."""

import ast

import pytest

from loomrl.environment.sources.imports import literal_imports


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("load = import_module\nNAME = 'one'\nload(NAME)", ["one"]),
        ("class A:\n    def f(self):\n        self.name = 'one'\n        import_module(self.name)", ["one"]),
        ("CONFIG['style'] = 'this'\nimport_module('plug.' + CONFIG['style'])", []),
        ("CONFIG['style'] = 'this'\nimport_module(CONFIG['other'])", []),
        ("one, two = 'this'\nimport_module(name())", []),
        ("handlers['load'] = import_module\nhandlers['greet']('antigravity')", []),
        ("handlers['load']: object = import_module\nchoose()('antigravity')", []),
    ],
)
def test_only_what_has_a_name_is_followed(source: str, names: list[str]) -> None:
    """What lies under a key, or comes of a call, is no literal: nothing says which of them is meant."""
    assert sorted(literal_imports(ast.walk(ast.parse(source)))) == names
