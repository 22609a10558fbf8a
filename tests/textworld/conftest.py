"""Games of TextWorld, by ``make test-textworld``; without the package the tests are skipped."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.environments.games import textworld


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("textworld") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no textworld; see make test-textworld"))


@pytest.fixture(scope="session", autouse=True)
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder for the games of all tests, and a single worker, so that it is known which one plays a game."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("COTERIE_HOME", str(home))
        patch.setattr(textworld, "_WORKERS", textworld._WORKERS[:1])
        yield home / "textworld"
        textworld._WORKERS[0].close()
