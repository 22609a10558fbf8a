"""Searches a tree of dialogues for one task: from promising utterances, new ways to go on.

Optima (arXiv 2410.08115), section 3.3 and algorithm 4. A search picks an utterance (the task's beginning
first), plays a few rollouts from it to the end, and adds their rewards to the values of all that they
went through. The next search picks by these values.

The rollouts of a search go as one group as long as they say the same: a group's next turn is sampled as
candidates of one prompt, which is read once, and the group then parts. An utterance nearly equal to a
sibling *is* that sibling, and its rollout goes on from there (the released code goes on from the new
text under the old node; then what was sampled does not follow from what the tree says came before).
What is sampled depends on the task's key and on the tree alone, so a search that was cut off is
done again alike.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from rapidfuzz.distance import Levenshtein

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.dialogue import (
    DialogueEnvironment,
    DialogueState,
    graded,
    messages,
    next_agent,
    step,
)
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler
from coterie.rollout.search import Rollout, SearchSettings, choose, node_values
from coterie.trajectories.credit import Credit
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import Turn, digest


@dataclass(frozen=True, slots=True)
class Judged:
    """What a dialogue came to."""

    reward: float
    credit: tuple[Credit, ...] = ()
    """What is to be kept of it: the reward's parts at its leaf, losses at its turns."""


PathJudge = Callable[[Tree, Sequence[Outcome]], Awaitable[list[Judged]]]
"""Rewards of finished paths of a tree, in order; raises ``EngineError``."""
OnSearch = Callable[[Tree, Sequence[Rollout], Sequence[Credit]], None]
"""Is told of each finished search: the tree as it is now, the new rollouts, and their credit."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where the dialogue stands after a turn, and what each agent has seen."""

    state: DialogueState
    contexts: dict[str, AgentContext]


class DialogueTree:
    """The search of one task's tree, from the beginning or from what is in ``tree`` already.

    ``rollouts`` are those of the finished searches, of which ``tree`` has the paths.
    """

    def __init__(
        self,
        environment: DialogueEnvironment,
        sampler: TokenSampler,
        judge: PathJudge,
        settings: SearchSettings,
        task: Task,
        tree: Tree,
        rollouts: Sequence[Rollout] = (),
        *,
        seed: int = 0,
    ) -> None:
        self.environment = environment
        self.sampler = sampler
        self.judge = judge
        self.settings = settings
        self.task = task
        self.tree = tree
        self.rollouts = list(rollouts)
        self.seed = seed
        start = DialogueState(task, None)
        contexts = {agent: AgentContext() for agent in environment.agents}
        self._stands = {tree.root: Stand(start, contexts)}
        self.judged: dict[str, Judged] = {}
        """By leaf, of the rollouts of this process."""

    async def grow(self, record: OnSearch) -> None:
        """Do the searches that are left; ``record`` is called after each.

        A rollout whose engine fails is recorded with the reason. Raises ``EngineGone``.
        """
        for leaf, reward in {(r.leaf, r.reward) for r in self.rollouts if r.leaf is not None}:
            assert reward is not None, "a rollout with a leaf has a reward"
            self.judged[leaf] = Judged(reward)
        done = {rollout.search for rollout in self.rollouts}
        for search in range(self.settings.searches):
            if search not in done:
                new, credit = await self.search(search)
                record(self.tree, new, credit)

    async def search(self, search: int) -> tuple[list[Rollout], list[Credit]]:
        """One search: choose a node, play rollouts from it, value what they went through."""
        node = choose(
            self.tree,
            node_values(self.tree, self.rollouts),
            [rollout.start for rollout in self.rollouts],
            self.settings,
            random.Random(self._key("choose", search)),
        )
        numbers = range(self.settings.rollouts)
        blank = [Rollout(search, number, node) for number in numbers]
        played = await self._roll(node, blank)
        found, credit = await self._valued(sorted(played, key=lambda r: r.number))
        self.rollouts += found
        if any(rollout.leaf is None for rollout in found):
            self._prune()
        return found, credit

    # -- rollouts -----------------------------------------------------------------------------

    async def _roll(self, node: str, group: Sequence[Rollout]) -> list[Rollout]:
        """Play a group of rollouts from a node to the end."""
        try:
            stand = await self._stand(node)
            if stand.state.end is not None:
                return [replace(rollout, leaf=node) for rollout in group]
            responses = await self._respond(node, stand, group)
        except EngineGone:
            raise
        except EngineError as error:
            return [replace(rollout, failure=str(error)) for rollout in group]
        parts: dict[str, list[Rollout]] = {}
        for rollout, one in zip(group, responses, strict=True):
            child = self._place(node, one)
            counted = replace(rollout, sampled=rollout.sampled + one.tokens)
            parts.setdefault(child, []).append(counted)
        ways = await asyncio.gather(
            *(self._roll(child, part) for child, part in parts.items()), return_exceptions=True
        )
        for way in ways:
            if isinstance(way, BaseException):
                raise way
        return [rollout for way in ways if not isinstance(way, BaseException) for rollout in way]

    async def _respond(self, node: str, stand: Stand, group: Sequence[Rollout]) -> list[Response]:
        agent = next_agent(self.environment, stand.state)
        shown = messages(self.environment, stand.state, agent)
        depth = len(stand.state.turns)
        seeds = [int(self._key("seed", r.search, r.number, depth)[:15], 16) for r in group]
        prompt = Prompt(self.tree, node, agent, shown, seeds[0], 0)
        return await self.sampler.candidates(prompt, stand.contexts[agent], seeds)

    def _place(self, node: str, response: Response) -> str:
        """The node that an utterance is: a sibling that says nearly the same, or a new one."""
        if response.turn.id in self.tree.turns:
            return response.turn.id
        if not response.truncated:
            for sibling in self.tree.children(node):
                if not _truncated(sibling) and self._same(response.turn.text, sibling.text):
                    return sibling.id
        self.tree.add(response.turn, response.request)
        return response.turn.id

    def _same(self, new: str, old: str) -> bool:
        return Levenshtein.distance(new, old) / (len(new) + 1) < self.settings.merge_distance

    async def _stand(self, node: str) -> Stand:
        """Where the dialogue stands at a node: its parent's stand and one turn more."""
        if node in self._stands:
            return self._stands[node]
        turn = self.tree.turns[node]
        before = await self._stand(turn.parent)
        state = await step(self.environment, before.state, turn, truncated=_truncated(turn))
        assert turn.sample is not None, "turns of a search are sampled"
        request = self.tree.requests[turn.sample.request]
        context = replace(before.contexts[turn.speaker.name])
        context.add(
            Response(turn, request, _truncated(turn), len(turn.ids)), self.tree.messages(request)
        )
        self._stands[node] = Stand(state, {**before.contexts, turn.speaker.name: context})
        return self._stands[node]

    # -- values -------------------------------------------------------------------------------

    async def _valued(self, played: Sequence[Rollout]) -> tuple[list[Rollout], list[Credit]]:
        """The rollouts with their rewards, and the credit of leaves that are new."""
        new: dict[str, Outcome] = {}
        try:
            for rollout in played:
                if rollout.leaf is not None and rollout.leaf not in self.judged:
                    new.setdefault(rollout.leaf, await self._outcome(rollout.leaf, rollout))
            judged = dict(zip(new, await self.judge(self.tree, list(new.values())), strict=True))
        except EngineGone:
            raise
        except EngineError as error:
            failed = replace(played[0], leaf=None, failure=f"no reward: {error}")
            return [replace(failed, number=r.number, sampled=r.sampled) for r in played], []
        self.judged |= judged
        for outcome in new.values():
            self.tree.end(outcome)
        found = [r if r.leaf is None else replace(r, reward=self.judged[r.leaf].reward)
                 for r in played]  # fmt: skip
        return found, [credit for one in judged.values() for credit in one.credit]

    async def _outcome(self, leaf: str, rollout: Rollout) -> Outcome:
        state = (await self._stand(leaf)).state
        assert state.end is not None, "a rollout is played to the end"
        score = (await graded(self.environment, state)).score
        if score is None:
            raise EngineError("the dialogue could not be graded")
        sample = rollout.search * self.settings.rollouts + rollout.number
        return Outcome(leaf, sample, state.end, state.answer, score)

    def _prune(self) -> None:
        """Drop the turns of rollouts that failed, so that a tree is what the record has of it."""
        kept = path_tree(self.tree, [r.leaf for r in self.rollouts if r.leaf is not None])
        self._stands = {
            node: stand
            for node, stand in self._stands.items()
            if node == kept.root or node in kept.turns
        }
        self.tree = kept

    def _key(self, *what: object) -> str:
        tree = self.tree
        return digest("tree", self.seed, tree.iteration, tree.stage, tree.task, *what)


def path_tree(tree: Tree, leaves: Sequence[str]) -> Tree:
    """The part of a tree that leads to these leaves."""
    found = Tree(tree.task, tree.stage, tree.iteration)
    for leaf in leaves:
        for turn in tree.path(leaf):
            found.add(turn, tree.requests[turn.sample.request] if turn.sample else None)
        if leaf in tree.outcomes:
            found.end(tree.outcomes[leaf])
    return found


def _truncated(turn: Turn) -> bool:
    """Whether a turn ran to the limit of its tokens."""
    return turn.sample is not None and turn.sample.finish == "length"
