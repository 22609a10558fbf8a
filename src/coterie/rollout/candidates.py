"""Candidates for every turn of a dialogue that was played before: what else the policy might have said there.

SWEET-RL (arXiv 2503.15478, section 4.2) samples them by the policy that played the dialogue, and has a critic rank
them. A dialogue and its candidates are one tree; each turn's prompt is read once for all of its candidates.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.environments.dialogue import DialogueEnvironment, DialogueState, messages
from coterie.rollout.voices import Ask, Memory, Said, TokenVoice
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Request, Turn, digest, make_turn

FIRST_DRAW = 1000
"""Draws of candidates begin here, those of played turns are below: the number of a sample."""


@dataclass(frozen=True, slots=True)
class Played:
    """One dialogue, and where its candidates go."""

    task: Task
    sample: int
    path: Sequence[Turn]

    @property
    def key(self) -> str:
        """Of the item that its candidates are."""
        return f"{self.sample:04d}"


@dataclass(slots=True)
class Branching:
    """Says a dialogue again in a tree of its own, and asks for candidates at each turn of the agent."""

    environment: DialogueEnvironment
    voice: TokenVoice
    iteration: int
    stage: str
    count: int
    """Candidates a turn."""
    seed: int

    async def branch(self, played: Played) -> Tree:
        """The tree of a dialogue with all candidates. Raises ``EngineError``."""
        tree = Tree(played.task.id, self.stage, self.iteration)
        agent = self.environment.agents[0]
        state, memory = DialogueState(played.task, None), Memory()
        asked: list[tuple[Ask, Memory]] = []
        node = tree.root
        for turn in played.path:
            if turn.speaker.name != agent:
                again = make_turn(
                    node, turn.speaker, turn.parts, author=turn.author, draw=turn.draw
                )
                tree.add(again)
            else:
                shown = messages(self.environment, state, agent)
                ask = Ask(tree, node, agent, shown, 0, turn.draw)
                asked.append((ask, replace(memory)))
                said = again_said(ask, memory, turn, self.voice)
                memory.hear(said, shown)
                tree.add(said.turn, said.request)
                again = said.turn
            state = replace(state, turns=(*state.turns, again))
            node = again.id
        found = await asyncio.gather(
            *(self._candidates(played, place, *one) for place, one in enumerate(asked))
        )
        for one in [said for group in found for said in group]:
            tree.add(one.turn, one.request)
        return tree

    async def _candidates(self, played: Played, place: int, ask: Ask, memory: Memory) -> list[Said]:
        key = (self.seed, self.iteration, self.stage, played.task.id, played.sample, place)
        seeds = [int(digest("candidate", *key, n)[:15], 16) for n in range(self.count)]
        first = FIRST_DRAW * (played.sample + 1)
        draws = range(first, first + self.count)
        return await self.voice.candidates(ask, memory, seeds, draws)


def again_said(ask: Ask, memory: Memory, turn: Turn, voice: TokenVoice) -> Said:
    """A turn said again, sampled or recorded: the same ids, under the same prompt in another tree."""
    prompt = voice.render(ask.shown, ask.tree, ask.agent)
    request = Request.make(
        ask.agent, ask.parent, memory.turn, prompt, ask.shown, memory.ids, memory.messages
    )
    sample = None if turn.sample is None else replace(turn.sample, request=request.id)
    again = make_turn(
        ask.parent,
        turn.speaker,
        turn.parts,
        ids=turn.ids,
        sample=sample,
        author=turn.author,
        draw=turn.draw,
        request=None if sample else request.id,
    )
    return Said(again, request, sample is not None and sample.finish == "length", len(turn.ids))


def candidates(tree: Tree) -> list[list[Turn]]:
    """The candidates of a tree, those of one turn of one dialogue together, in the order in which they
    were drawn."""
    found: dict[tuple[str, int], list[Turn]] = {}
    for turn in tree.turns.values():
        if turn.sample is not None and turn.draw >= FIRST_DRAW:
            found.setdefault((turn.parent, turn.draw // FIRST_DRAW), []).append(turn)
    return [sorted(turns, key=lambda turn: turn.draw) for turns in found.values()]
