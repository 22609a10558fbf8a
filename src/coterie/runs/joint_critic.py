"""Joint state of a dialogue, for a critic that reads what no single agent may (MAPPO, arXiv 2103.01955).

The row of a path has the task's secrets for the role ``critic``, what each agent sees at the beginning, and all turns
in the order of the record, with what their agents saw before them. A target at the beginning of each agent's turn makes
the value before it depend on nothing later. Only the critic may read the private parts, and rows are never stored, so
they cannot reach a policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.models.chat import ChatRenderer
from coterie.record.rows import Row, Target
from coterie.record.tree import Outcome, Task, Tree
from coterie.record.turn import Message, Part, Turn
from coterie.rewards.advantages import SampledPath
from coterie.rollout.episodes import REWARD
from coterie.rollout.samplers import Prompt
from coterie.runs.reinforce_settings import CRITIC

NEXT_TURN = "\n\nNext turn:"
"""Text before each turn of an agent, after which the value of a state is read."""


def critic_name(agent: str) -> str:
    """Return the name under which the critic of the joint state reads the paths of an agent."""
    return f"{CRITIC}:{agent}"


@dataclass(frozen=True, slots=True)
class JointPath:
    """States before the turns of all agents of a path, for the reward of one of them."""

    row: Row
    """Row with a target for each turn, and for the state after a path that a limit cut off."""
    rewards: tuple[float, ...]
    """Reward of the agent by turn of all agents, without the reward of the whole path."""

    def rewards_of(self, sampled: SampledPath) -> list[float]:
        """Return the reward of each turn; the last one includes the reward of the whole path."""
        return [*self.rewards[:-1], self.rewards[-1] + (sampled.reward or 0.0)]

    def by_token(self, rows: Sequence[Row], numbers: Sequence[float]) -> list[float]:
        """Return the number of its turn for each trained token of an agent's rows."""
        of_turns = dict(zip((target.turn for target in self.row.targets), numbers, strict=False))
        targets = (target for row in rows for target in row.targets)
        spans = ((target.turn, range(max(target.start, 1), target.stop)) for target in targets)
        return [of_turns[turn] for turn, span in spans for _ in span]


@dataclass(frozen=True, slots=True)
class JointReader:
    """Builds the critic's rows of a step."""

    renderer: ChatRenderer
    tasks: Mapping[str, Task]
    first_prompts: Mapping[str, Mapping[str, Prompt]]
    """First prompt of each agent by task. Later prompts may quote turns, which earlier states must not contain."""

    def path(
        self,
        tree: Tree,
        outcome: Outcome,
        path: Sequence[Turn],
        agent: str,
        rewards: Mapping[tuple[str, str], float],
    ) -> JointPath:
        """Return the states of a path for an agent's reward."""
        prompts = self.first_prompts[tree.task]
        readers, opening = (CRITIC, *prompts), next(iter(prompts.values())).tree
        views = {
            name: [_text(message, opening, readers) for message in prompt.messages]
            for name, prompt in prompts.items()
        }
        ids = [*self._head(opening, views, agent)]
        targets, of_turns, text = list[Target](), [0.0], ""
        seen = {piece for view in views.values() for piece in view}
        # The prompts of the beginning show its observations.
        for turn in path[len(opening.turns) :]:
            name = turn.speaker.name
            if turn.speaker.kind == "agent" and turn.prompt is not None:
                # The row has the turns of a prompt already, and needs its other messages.
                messages = tree.messages(tree.requests[turn.prompt])
                texts = [_text(message, tree, readers) for message in messages if not message.turn]
                new = dict.fromkeys(piece for piece in texts if piece not in seen)
                seen.update(new)
                text += "".join(f"\n\n{name} sees: {piece}" for piece in new)
                ids += self.renderer.encode_content(text + NEXT_TURN)
                of_turns += [0.0] if targets else []
                targets.append(Target(len(ids), len(ids) + 1, CRITIC, turn.id))
                text = f" {name}: {_said(turn, readers)}"
            else:
                text += f"\n\n{name}: {_said(turn, readers)}"
            # The reward of a later turn of a person or the environment belongs to the last agent's.
            of_turns[-1] += rewards.get((turn.id, f"{REWARD}:{agent}"), 0.0)
        if outcome.ending.truncated:
            ids += self.renderer.encode_content(text + NEXT_TURN)
            targets.append(Target(len(ids), len(ids) + 1, CRITIC))
        # The value is read before the first token of a turn.
        ids += self.renderer.encode_content(text)
        row = Row(tuple(ids[: targets[-1].stop]), tuple(targets), context="joint")
        return JointPath(row, tuple(of_turns))

    def _head(self, opening: Tree, views: Mapping[str, Sequence[str]], agent: str) -> Sequence[int]:
        """Return the prompt before the first turn. The agent comes last, so that paths of a task share the rest."""
        parts = list[Part]()
        for name, secret in sorted(self.tasks[opening.task].secrets.items()):
            if CRITIC in secret.readers:
                parts += [Part(f"{name}: "), secret.part(CRITIC), Part("\n\n")]
        for name, view in views.items():
            text = "\n".join((f"{name} sees:", *view))
            parts.append(Part(f"{text}\n\n", frozenset({CRITIC}), "joint"))
        parts.append(Part(f"Estimate the reward of {agent} from each point to the end."))
        return self.renderer.render([Message("user", tuple(parts))], opening, CRITIC)


def _text(message: Message, tree: Tree, readers: Sequence[str]) -> str:
    text = "".join(part.text for part in message.parts)
    return text + (_said(tree.turns[message.turn], readers) if message.turn else "")


def _said(turn: Turn, readers: Sequence[str]) -> str:
    # Parts for a person alone, such as what a simulated user hides, are none of the critic's.
    parts = [part.text for part in turn.parts if any(map(part.visible_to, readers))]
    return "".join(parts) or "\n".join(result.text for result in turn.results)
