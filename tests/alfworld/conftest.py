"""Games of ALFWorld, by ``make test-alfworld``; without the package the tests are skipped."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.environments.games import alfworld
from tests.alfworld.games import write_games


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("alfworld") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no alfworld; see make test-alfworld"))


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of games, and a single worker, so that it is known which one plays a game."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alfworld, "_WORKERS", alfworld._WORKERS[:1])
        yield write_games(tmp_path_factory.mktemp("games"))
        alfworld._WORKERS[0].close()
