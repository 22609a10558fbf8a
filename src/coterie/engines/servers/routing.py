"""Routing of prompts to the server with the longest cached prefix, unless it is too busy.

Prompts are split into blocks (:mod:`coterie.engines.prefixes`), and the router records which servers have seen each
block's key. The rule:

* The servers that have seen the longest prefix of the prompt are its *holders*. The least loaded holder gets the prompt
  if the prefix has at least ``SHARE`` of the whole blocks (a common system prompt is not enough), and if its load is at
  most ``FACTOR`` times the load of the least loaded server, plus ``SLACK``.
* Otherwise the least loaded server gets it; among equals the server with the fewest prompts so far.

The time per prompt is linear in its blocks. Memory is bounded: least recently used prefixes are dropped first.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

SHARE = 0.5
FACTOR = 1.5
SLACK = 8


class PrefixRouter:
    """Router that records the prefixes of each server, at most ``capacity`` blocks."""

    def __init__(self, servers: int, capacity: int = 1 << 17) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        """Bit set of the servers that have seen the block, by key."""
        self._counts = [0] * servers

    def choose(self, keys: Sequence[bytes], loads: Sequence[int], among: Collection[int]) -> int:
        """Return the server for a prompt.

        Args:
            keys: Keys of the prompt's blocks.
            loads: Requests in flight of every server.
            among: Servers to choose from, at least one.
        """
        least = min(among, key=lambda server: (loads[server], self._counts[server], server))
        depth, holders = self._holders(keys, among)
        chosen = least
        if keys and depth >= SHARE * len(keys):
            holder = min(holders, key=lambda server: (loads[server], server))
            if loads[holder] <= FACTOR * loads[least] + SLACK:
                chosen = holder
        self._counts[chosen] += 1
        return chosen

    def remember(self, server: int, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):  # first blocks last, so that they are dropped last
            self._seen[key] = self._seen.get(key, 0) | 1 << server
            self._seen.move_to_end(key)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def forget(self, server: int) -> None:
        for key in list(self._seen):
            self._seen[key] &= ~(1 << server)
            if not self._seen[key]:
                del self._seen[key]

    def clear(self) -> None:
        self._seen.clear()

    def __len__(self) -> int:
        return len(self._seen)

    def _holders(self, keys: Sequence[bytes], among: Collection[int]) -> tuple[int, list[int]]:
        allowed = sum(1 << server for server in among)
        depth, holders = 0, allowed
        for key in keys:
            if not (still := self._seen.get(key, 0) & holders):
                break
            depth, holders = depth + 1, still
        return depth, [server for server in among if holders >> server & 1]
