"""Bridges to other frameworks without their packages: names are listed, and what to install is told."""

import sys

import pytest

from coterie.environments.registry import BUILT_IN, ENVIRONMENTS
from tests.conftest import Cli, refused

NEEDS = {"openenv": "websockets", "verifiers": "verifiers"}


@pytest.mark.parametrize("name", NEEDS)
def test_a_bridge_without_its_package_says_what_to_install(
    name: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ENVIRONMENTS.built_in[name].partition(":")[0]
    monkeypatch.delitem(sys.modules, module, raising=False)
    for one in [NEEDS[name], *sys.modules]:
        if one.partition(".")[0] == NEEDS[name]:
            monkeypatch.setitem(sys.modules, one, None)
    assert f"pip install -e '.[{name}]'" in refused(cli, "evaluate", name, "policy=tiny-acts")
    monkeypatch.delitem(sys.modules, module, raising=False)


def test_all_bridges_are_listed_without_their_packages(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("reasoning_gym", *NEEDS.values()):
        monkeypatch.setitem(sys.modules, package, None)
    listed = cli("list").out
    assert all(name in listed for name, entry in BUILT_IN.items() if "bridges" in entry.path)
