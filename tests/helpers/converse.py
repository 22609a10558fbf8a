"""A dialogue with the messages that a test gives its agent."""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.environments.protocol import AGENT, Environment, Grade, Shared, State
from coterie.environments.user_simulator import PERSON, UserSimulator
from coterie.record.tree import Task, Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.episodes import Driver
from coterie.rollout.samplers import AgentContext, Prompt, Response, Sampler, UserSampler


@dataclass
class Says:
    """A sampler of given texts, one after the other."""

    texts: Sequence[str]

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        path = [] if prompt.parent == prompt.tree.root else prompt.tree.path(prompt.parent)
        text = self.texts[sum(turn.speaker.name == prompt.agent for turn in path)]
        speaker = Speaker("agent", prompt.agent)
        turn = make_turn(prompt.parent, speaker, [Part(text)], author="test", draw=prompt.draw)
        return Response(turn, None, len(text))


async def converse(
    environment: Environment,
    task: Task,
    texts: Sequence[str],
    shared: Shared,
    person: UserSimulator | None = None,
) -> tuple[State, Grade | None]:
    """Return the state after all texts of the agent and their answers, and the grade of a finished dialogue."""
    samplers: dict[str, Sampler] = {AGENT: Says(texts), PERSON: Says(())}
    if person is not None:
        samplers[PERSON] = UserSampler(person)
    own = {name: samplers[name] for name in environment.actors}
    driver = Driver(environment, own, seed=0, shared=shared)
    left = len(texts)
    async with driver.sessions() as sessions:
        branches = driver.branches(task, Tree(task.id, "test", 0), sessions)
        at = await branches.start()
        while at.state.end is None and (left or branches.next_actors(at) != (AGENT,)):
            acting = branches.next_actors(at)
            left -= acting == (AGENT,)
            responses = await branches.respond(at, dict.fromkeys(acting, 0), 0)
            at = await branches.advance(at, responses)
        assert not left, f"it ended before the agent had said {list(texts[-left:])}"
        grade = await branches.grade(at) if at.state.end else None
        await branches.close()
        return at.state, grade
