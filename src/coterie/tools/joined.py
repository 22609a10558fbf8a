"""Several sources of tools as one. Tools keep their names; those of one name get their source's in front."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from coterie.tools.checking import check_tools
from coterie.tools.run import Function
from coterie.tools.source import ToolSource
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import digest


class Joined:
    """The tools of sources that have names, in their order: ``search`` of ``wiki`` and of ``web`` are ``wiki_search``
    and ``web_search``, all others are called as in their sources.

    Raises ``UserError`` if two are called alike even so.
    """

    def __init__(self, sources: Mapping[str, ToolSource]) -> None:
        self._sources = dict(sources)
        count = Counter(tool.name for one in self._sources.values() for tool in one.tools)
        self._names = {
            (source, tool.name): tool.name if count[tool.name] == 1 else f"{source}_{tool.name}"
            for source, one in self._sources.items()
            for tool in one.tools
        }
        self.tools: tuple[Tool, ...] = tuple(
            replace(tool, name=self._names[source, tool.name])
            for source, one in self._sources.items()
            for tool in one.tools
        )
        check_tools(self.tools)
        self.tags: Mapping[str, Tag] = {
            self._names[source, name]: tag
            for source, one in self._sources.items()
            for name, tag in one.tags.items()
        }
        self.identity = digest([(name, one.identity) for name, one in self._sources.items()])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """What runs the calls of all of them. Raises ``UserError`` as they do."""
        async with AsyncExitStack() as stack:
            functions: dict[str, Function] = {}
            for source, one in self._sources.items():
                opened = await stack.enter_async_context(one.open())
                functions |= {self._names[source, name]: do for name, do in opened.items()}
            yield functions
