"""The settings of planner and grounder as an environment."""

from coterie.config.folders import expanded
from coterie.config.settings import key
from coterie.engines.chat_model import ChatModelSettings
from coterie.environments.plan_ground.form import Form
from coterie.environments.settings import EnvironmentSettings
from coterie.errors import UserError
from coterie.tools.actions.corpus import fingerprint
from coterie.trajectories.turn import digest

RULES = "rules"
"""As a reader: a few rules, which need no model."""


class ReaderSettings(ChatModelSettings):
    """Who answers questions from passages."""

    model: str = key(
        RULES,
        "`rules` (which understand nothing: for tests, and as a bar to pass), a model that coterie loads, or, "
        "with a `url`, the name of a model there.",
        source="Lumos: GPT-3.5, GPT-4",
        min_length=1,
    )

    @property
    def rules(self) -> bool:
        return self.url is None and self.model == RULES


class PlanGroundSettings(EnvironmentSettings):
    """Settings of planner and grounder."""

    form: Form = key(
        "onetime",
        "`onetime`: a whole plan, then all actions; `iterative`: one subgoal and its actions at a time.",
    )
    turns: int = key(16, "Most turns of both together, in the form `iterative`.", ge=2)
    corpus: str | None = key(
        None,
        "The pages that questions are answered from: a folder that `coterie data index` made. Without it, those that "
        "come with a question (hotpot_qa).",
    )
    reader: ReaderSettings = ReaderSettings()

    def identity(self) -> str:
        """What the pages say counts, not their place; of the reader, what its answers depend on."""
        pages = None if self.corpus is None else fingerprint(expanded(self.corpus))
        reader = () if self.reader.rules else self.reader.identity()
        return digest(self.model_dump_json(exclude={"name", "corpus", "reader"}), pages, *reader)


def check_no_pages(settings: PlanGroundSettings, what: str) -> None:
    """Refuse pages and a reader where nothing is searched; ``what`` is what the environment has, and a verb."""
    if settings.corpus is not None:
        raise UserError(f"{what} no pages to be searched", "leave out environment.corpus")
    if not settings.reader.rules:
        raise UserError(f"{what} nothing to be read", "leave out environment.reader")
