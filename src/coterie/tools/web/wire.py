"""What the servers of search and of pages are asked, and what they answer.

Search speaks Serper's JSON, so that its clients can ask us and we can ask it. Fields that other clients send and that
mean nothing here are ignored.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_HITS = 100
MAX_QUERY = 2000
"""Characters."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SearchBody(_Body):
    """``POST /search``."""

    q: str = Field(min_length=1, max_length=MAX_QUERY)
    num: int = Field(10, ge=1, le=MAX_HITS)

    @field_validator("q")
    @classmethod
    def _stripped(cls, q: str) -> str:
        if not q.strip():
            raise ValueError("is empty")
        return q.strip()


class Hit(_Body):
    """A page that was found."""

    title: str = ""
    link: str
    snippet: str = ""
    date: str | None = None
    source: str | None = None


class SearchAnswer(_Body):
    """What was found, best first."""

    organic: list[Hit] = Field(default_factory=list)

    def dump(self, query: str, num: int) -> dict[str, Any]:
        """As Serper sends it."""
        hits = [
            {**hit.model_dump(exclude_none=True), "position": place}
            for place, hit in enumerate(self.organic, 1)
        ]
        return {"searchParameters": {"q": query, "num": num, "type": "search"}, "organic": hits}


class CrawlBody(_Body):
    """``POST /crawl_page``. Without a task and thoughts no page is summarised for them: its text is given."""

    urls: list[str] = Field(min_length=1, max_length=50)
    task: str = ""
    web_search_query: str = ""
    think_content: str = ""


class CrawlAnswer(_Body):
    """What stands on the pages."""

    success: bool
    """Whether at least one page was read."""
    obs: str
    """The pages in the order of the URLs, each with its text, its summary, or why it was not read."""
    error_message: str = ""
    processing_time: float = 0.0
    """Seconds."""
