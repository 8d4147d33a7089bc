"""Modules at their old places: they import, they say where they have moved, and they are the new ones."""

import importlib
import sys

import pytest

from regard.common.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_old_places_import_and_name_the_new_ones(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    new = [MOVED[old]] if isinstance(MOVED[old], str) else MOVED[old]
    with pytest.warns(DeprecationWarning, match=f"{old} .*{new[-1]}"):
        found = importlib.import_module(old)
    for part in map(importlib.import_module, new):
        own = [name for name, x in vars(part).items() if getattr(x, "__module__", None) == part.__name__]
        assert own and all(getattr(found, name) is getattr(part, name) for name in own)
        assert found is part or len(new) > 1


def test_a_module_that_was_split_has_all_that_it_had(monkeypatch):
    monkeypatch.delitem(sys.modules, "regard.store", raising=False)
    names = "Damaged DEFAULT BUNDLED find parse_value read_tensors read_toml to_toml write_tensors write_toml"
    with pytest.warns(DeprecationWarning, match="regard.store was split"):
        store = importlib.import_module("regard.store")
    assert all(hasattr(store, name) for name in names.split())
