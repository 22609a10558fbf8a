"""Settings of the planner and grounder environment."""

from coterie.config.folders import expanded
from coterie.config.settings import key
from coterie.engines.chat_model import ChatModelSettings
from coterie.environments.plan_ground.form import Form
from coterie.environments.settings import EnvironmentSettings
from coterie.errors import UserError
from coterie.tools.actions.questions import fingerprint
from coterie.trajectories.turn import digest

RULES = "rules"
"""Name of the reader that uses rules and no model."""


class ReaderSettings(ChatModelSettings):
    """Settings of the reader, which answers questions from passages."""

    model: str = key(
        RULES,
        "`rules` (without a model: for tests, and as a baseline), a model that coterie loads, or, "
        "with a `url`, the name of a model there.",
        source="Lumos: GPT-3.5, GPT-4",
        min_length=1,
    )

    @property
    def rules(self) -> bool:
        return self.url is None and self.model == RULES


class PlanGroundSettings(EnvironmentSettings):
    """Settings of the planner and grounder environment."""

    form: Form = key(
        "onetime",
        "`onetime`: a whole plan, then all actions; `iterative`: one subgoal and its actions at a time.",
    )
    turns: int = key(16, "Maximum turns of both agents in the form `iterative`.", ge=2)
    corpus: str | None = key(
        None,
        "Folder of pages, indexed by `coterie data index`, for questions. The default is the pages of the rows "
        "themselves (hotpot_qa).",
    )
    reader: ReaderSettings = ReaderSettings()

    def identity(self) -> str:
        """Hash the content of the pages, not their path, and the settings that the reader's answers depend on."""
        pages = None if self.corpus is None else fingerprint(expanded(self.corpus))
        reader = () if self.reader.rules else self.reader.identity()
        return digest(self.model_dump_json(exclude={"name", "corpus", "reader"}), pages, *reader)


def check_no_pages(settings: PlanGroundSettings, what: str) -> None:
    """Raise ``UserError`` for a corpus or a reader in a domain without searches; ``what`` ends with a verb."""
    if settings.corpus is not None:
        raise UserError(f"{what} no pages to search", "leave out environment.corpus")
    if not settings.reader.rules:
        raise UserError(f"{what} no passages to read", "leave out environment.reader")
