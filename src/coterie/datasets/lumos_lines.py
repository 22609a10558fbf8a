"""Lumos' two files: what a line of them is.

A line has the keys ``dataset``, ``id`` and ``messages``. There are two forms of a dialogue. At once (``onetime``): one
message asks for the whole plan, or for all actions. Step by step (``iterative``): a turn for each subgoal. The latter
can be ``unrolled``: a line for each step, which has the dialogue up to it. Formats:
https://github.com/allenai/lumos.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from coterie.datasets.plan_rows import Domain
from coterie.datasets.rows import Text

NAMES: Mapping[Domain, str] = {"maths": "maths", "complex_qa": "complex_qa", "web": "web_agent"}
"""What upstream calls the domains, under ``dataset``."""

TOOLS: Mapping[Domain, tuple[str, ...]] = {
    "maths": (
        "Calculator(formula)",
        "SetEquation(equation)",
        "SolveEquation(equation)",
        "Count(list)",
        "SolveInequality(inequality)",
        "Code(pseudo_code)",
        "Define(expression)",
    ),
    "complex_qa": (
        "KnowledgeQuery(query)",
        "ParagraphRetrieve(context, query)",
        "QA(context, query)",
        "Calculator(formula)",
        "Code(pseudo_code)",
    ),
    "web": ("CLICK(Env, Query)", "TYPE(Env, Query, Text)", "SELECT(Env, Query, Text)"),
}
"""The tools of each domain, with their arguments."""


class Message(BaseModel):
    """One turn of a dialogue."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["system", "user", "assistant"]
    content: str


class LumosLine(BaseModel):
    """One line of a plan file or a ground file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    dataset: Text
    id: Text
    messages: tuple[Message, ...] = Field(min_length=2)

    @property
    def said(self) -> list[Message]:
        """The messages without a system message."""
        return [message for message in self.messages if message.role != "system"]
