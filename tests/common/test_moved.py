"""Modules that were split: the old place imports, names all new ones, and has what they have."""

import importlib
import sys

import pytest

from regard.common.moved import MOVED

SPLIT = {old: new for old, new in MOVED.items() if not isinstance(new, str)}
NAMES = {
    "regard.search": "Search SummarySearch",
    "regard.store": "BUNDLED DEFAULT Damaged find parse_value read_tensors read_toml to_toml write_tensors write_toml",
}


@pytest.mark.parametrize("old", SPLIT)
def test_the_old_place_of_a_module_that_was_split_has_all_that_it_had(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{old} was split: import {', '.join(SPLIT[old])}$") as caught:
        found = importlib.import_module(old)
    assert len(caught) == 1 and all(hasattr(found, name) for name in NAMES[old].split())
    for part in map(importlib.import_module, SPLIT[old]):
        own = [name for name, x in vars(part).items() if getattr(x, "__module__", None) == part.__name__]
        assert own and all(getattr(found, name) is getattr(part, name) for name in own)
