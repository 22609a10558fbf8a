"""Which server gets a prompt: the one that has most of it in its prefix cache, unless it is busier.

Prompts are cut into blocks (:mod:`coterie.engines.prefixes`); for each block's key we remember which servers
have seen it. The rule:

* The servers that know the longest part of the prompt are its *holders*. They are asked first if they know
  at least ``SHARE`` of its whole blocks (a system prompt that everybody knows makes no holder), and the least
  loaded of them has at most ``FACTOR`` times the load of the least loaded server, plus ``SLACK``.
* Else the least loaded server, among equals the one that has been given the fewest prompts.

Work per prompt is linear in its blocks; memory is bounded, least recently used prefixes go first.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

SHARE = 0.5
FACTOR = 1.5
SLACK = 8


class PrefixRouter:
    """Remembers which of ``servers`` has seen which prefixes; at most ``capacity`` blocks."""

    def __init__(self, servers: int, capacity: int = 1 << 17) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        """Servers that have seen the block with this key, as a set of bits."""
        self._given = [0] * servers

    def choose(self, keys: Sequence[bytes], loads: Sequence[int], among: Collection[int]) -> int:
        """The server for a prompt of these keys; ``loads`` are requests in flight of every server.

        ``among`` are the servers that may be chosen, at least one.
        """
        least = min(among, key=lambda server: (loads[server], self._given[server], server))
        depth, holders = self._holders(keys, among)
        chosen = least
        if keys and depth >= SHARE * len(keys):
            holder = min(holders, key=lambda server: (loads[server], server))
            if loads[holder] <= FACTOR * loads[least] + SLACK:
                chosen = holder
        self._given[chosen] += 1
        return chosen

    def remember(self, server: int, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):  # beginnings last, so that ends are forgotten first
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
