"""Contract 9: what is promised holds for four shapes of chat template."""

import pytest

from coterie.engines.inprocess import InProcessEngine
from tests.helpers.template_models import TEMPLATES, make_model


@pytest.fixture(params=TEMPLATES)
def template(request: pytest.FixtureRequest) -> str:
    """The name of a chat template."""
    return str(request.param)


@pytest.fixture
def engine(template: str) -> InProcessEngine:
    """A random model with that template, sampled in this process."""
    return InProcessEngine(make_model(template), policy="random", version="0")
