"""Turns of other authors and candidate turns under the prompts of this run, and rows of written conversations.

A written turn has an author but no sample; its text is tokenized here, once. Its request is the prompt that the run's
own model would have received, so it can be trained on, and rows equal the rows of sampled dialogues. SWEET-RL (arXiv
2503.15478, section 4.2) samples candidates for every agent turn of a dialogue (:class:`CandidateSampling`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from coterie.datasets.conversations import Conversation, Preference, Targets
from coterie.datasets.messages import ChatMessage, flaw_of, parse_messages, parse_tools
from coterie.engines.protocol import EngineError
from coterie.environments.protocol import (
    Environment,
    Shared,
    State,
    agents_of,
    faults_of,
    messages_of,
)
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.record.rows import Pair, Row, View, assemble, rows
from coterie.record.tree import Task, Tree
from coterie.record.turn import (
    Message,
    Part,
    Request,
    Speaker,
    Tool,
    ToolResult,
    Turn,
    common_length,
    digest,
    make_turn,
)
from coterie.rollout.branches import (
    Branches,
    Position,
    context_at,
    gather_all,
    left_after,
    make_step_result,
    sample_in_context,
)
from coterie.rollout.episodes import Driver
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler
from coterie.rollout.sessions import Sessions
from coterie.tools.calls import template_tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def recorded_response(
    prompt: Prompt,
    context: AgentContext,
    text: str,
    author: str,
    renderer: ChatRenderer,
    *,
    end: bool = True,
) -> Response:
    """Return ``text`` by ``author`` as the agent's next turn. ``end=False``: it ends with a stop string of its own."""
    # The request is the prompt that the policy would get, so the turn can become a training target.
    prompt_ids = renderer.render(prompt.messages, prompt.tree, prompt.agent, tools=prompt.tools)
    request = prompt.request(prompt_ids, context)
    ids = renderer.encode_turn(text, end=end)
    parts = renderer.parts(renderer.format_turn(text), prompt.agent, author, ids)
    speaker, draw = Speaker("agent", prompt.agent), prompt.draw
    turn = make_turn(
        prompt.parent, speaker, parts, ids=ids, author=author, draw=draw, request=request.id
    )
    return Response(turn, request, len(turn.ids))


EXPERT = "expert"
Script = Callable[[Task], Sequence[str]]
"""Function that returns all messages of the agent for a task, in order."""


@dataclass(eq=False)
class ScriptedSampler:
    """Sampler that returns the messages of a script one by one."""

    renderer: ChatRenderer
    script: Script
    author: str = EXPERT

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the next message. Raises ``EngineError`` after the last, and for one that no policy could sample."""
        assert prompt.task is not None, "a script needs a task"
        messages = self.script(prompt.task)
        # The script continues after the agent's earlier turns on this path.
        index = sum(
            turn.speaker.kind == "agent" and turn.speaker.name == prompt.agent
            for turn in prompt.tree.path(prompt.parent)
        )
        if index >= len(messages):
            raise EngineError(
                f"the script of task {prompt.task.id} has {len(messages)} messages, but another is needed"
            )
        text = messages[index]
        # A policy stops at the first stop string, so it could never produce text after it.
        stopped = stopped_at(text, prompt.stop)
        if stopped not in (None, len(text)):
            raise EngineError(
                f"message {index + 1} of the script of task {prompt.task.id} continues after its stop string: "
                f"{text[:stopped][-40:]!r}"
            )
        reply = (text, self.author, self.renderer)
        return recorded_response(prompt, context, *reply, end=stopped is None)


def stopped_at(text: str, stops: Sequence[str]) -> int | None:
    """Return the end of the first stop string in a text; ``None`` without one."""
    return min((text.index(stop) + len(stop) for stop in stops if stop in text), default=None)


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """A turn to write for an actor."""

    actor: str
    text: str
    author: str
    """Who wrote it: ``data``, ``critic:NAME``, or the policy that sampled it elsewhere."""
    ids: tuple[int, ...] = ()
    """Sampled tokens, if any; else the text is tokenized."""


def write_path(
    environment: Environment,
    task: Task,
    tree: Tree,
    turns: Sequence[WrittenTurn],
    renderers: Mapping[str, ChatRenderer],
    draw: int = 0,
) -> list[Turn]:
    """Add a path of turns to the root of a tree and return them. Equal paths with the same ``draw`` are one branch."""
    path: list[Turn] = []
    for scripted in turns:
        state = State(task, 0, turns=tuple(path))
        messages = messages_of(environment, state, scripted.actor)
        parent = path[-1].id if path else tree.root
        renderer = renderers[scripted.actor]
        tools = template_tools(environment.syntax, environment.tools(state, scripted.actor))
        # Render the prompt that the policy would get here, so the row equals a sampled dialogue's.
        prompt = renderer.render(messages, tree, scripted.actor, tools=tools)
        # The request holds the whole prompt instead of a delta: there is no running prompt here.
        request = Request.make(scripted.actor, parent, None, prompt, messages, tools=tools)
        # The text of sampled tokens is final; written text gets the form that the template expects.
        text = scripted.text if scripted.ids else renderer.format_turn(scripted.text)
        speaker, parts = (
            Speaker("agent", scripted.actor),
            renderer.parts(text, scripted.actor, "literal"),
        )
        ids, author = scripted.ids or renderer.encode_turn(scripted.text), scripted.author
        turn = make_turn(
            parent, speaker, parts, ids=ids, author=author, draw=draw, request=request.id
        )
        tree.add(turn, request)
        path.append(turn)
    return path


FIRST_DRAW = 1000
"""First draw number of candidates; the draws of played turns are sample numbers below it."""


@dataclass(frozen=True, slots=True)
class PlayedDialogue:
    """A dialogue to sample candidates for."""

    task: Task
    sample: int
    path: Sequence[Turn]

    @property
    def key(self) -> str:
        return f"{self.sample:04d}"


@dataclass(slots=True)
class CandidateSampling:
    """Copies a dialogue into a new tree and samples candidates at each agent turn.

    The environment must be pure, with a state that follows from the turns alone.
    """

    driver: Driver
    sampler: TokenSampler
    sessions: Sessions
    iteration: int
    stage: str
    count: int

    async def branch(self, dialogue: PlayedDialogue) -> Tree:
        """Return the tree of a dialogue with all candidates. Raises ``EngineError`` if sampling fails."""
        environment, task = self.driver.environment, dialogue.task
        tree = Tree(task.id, self.stage, self.iteration)
        branches = self.driver.branches(task, tree, self.sessions)
        agents, branching = agents_of(environment), list[tuple[Position, str, list[int]]]()
        key = (self.driver.seed, self.iteration, self.stage, task.id, dialogue.sample)
        # Each dialogue has a range of draws of its own, by which its candidates are grouped later.
        first_draw = FIRST_DRAW * (dialogue.sample + 1)
        position = Position(tree.root, State(task, branches.seed))
        for turn in dialogue.path:
            contexts, agent = dict(position.contexts), turn.speaker.name
            if agent in agents:
                # The seeds follow from the dialogue and the turn alone, so an interrupted stage
                # repeats them.
                seeds = [digest("candidate", *key, len(branching), n) for n in range(self.count)]
                branching.append((position, agent, [int(seed[:15], 16) for seed in seeds]))
                # Copy the agent's turn below a prompt of this tree, so that later requests are
                # deltas on it.
                prompt = branches.prompt(position, agent, 0, turn.draw)
                copied_turn, request = _repeated(
                    prompt, context_at(position, agent), turn, self.sampler
                )
                contexts[agent] = context_at(position, agent).after(copied_turn, request)
                tree.add(copied_turn, request)
            else:
                # A turn of a person or of the environment has no tokens, only content.
                speaker_and_parts = (turn.speaker, turn.parts)
                copied_turn = make_turn(
                    position.node, *speaker_and_parts, author=turn.author, draw=turn.draw
                )
                tree.add(copied_turn)
            position = Position(
                copied_turn.id,
                await _state_after(environment, position.state, copied_turn),
                contexts,
            )
        # All turns of the dialogue are known now, so the candidates of all of them are sampled at
        # once.
        work = [
            self._candidates(branches, *branching_point, first_draw)
            for branching_point in branching
        ]
        for group in await gather_all(work):
            for response in group:
                tree.add(response.turn, response.request)
        return tree

    async def _candidates(
        self,
        branches: Branches,
        position: Position,
        agent: str,
        seeds: Sequence[int],
        first_draw: int,
    ) -> list[Response]:
        """Sample all candidates with one pass over the prompt."""
        # The seed and draw of the prompt are unused, since every candidate has its own.
        context, draws = context_at(position, agent), range(first_draw, first_draw + self.count)
        return await sample_in_context(
            branches.environment,
            position.state,
            branches.prompt(position, agent, 0, 0),
            lambda prompt: self.sampler.candidates(prompt, context, seeds, draws),
        )


async def _state_after(environment: Environment, state: State, turn: Turn) -> State:
    """Return the state of a pure environment after a recorded turn, without the environment's observations.

    The state ends if the environment ends it at this turn, even if the recorded path continues.
    """
    # The first state has no counts yet. An end is removed, because the recorded path continues.
    budgets = left_after(state.left or environment.limits, [turn])
    next_state = replace(state, turns=(*state.turns, turn), left=budgets, end=None)
    with faults_of(environment):
        transition = await environment.act(next_state, (turn,), Shared())
        # The recorded observations are turns of the path already.
        silent = replace(transition, seen=(), rewards={})
        return make_step_result(turn.id, next_state, (turn,), silent, {}, None).position.state


def _repeated(
    prompt: Prompt, context: AgentContext, turn: Turn, sampler: TokenSampler
) -> tuple[Turn, Request]:
    """Copy a turn with its ids to the same prompt in another tree."""
    # Request ids differ between trees, so the sample must refer to the new one.
    prompt_ids = sampler.render(prompt.messages, prompt.tree, prompt.agent, tools=prompt.tools)
    request = prompt.request(prompt_ids, context)
    sample = None if turn.sample is None else replace(turn.sample, request=request.id)
    prompted = replace(turn, sample=sample, request=None if sample else request.id)
    return prompted.moved(prompt.parent, turn.speaker, ()), request


def candidates(tree: Tree) -> list[list[Turn]]:
    """Return the candidates of a tree, grouped by the turn and dialogue they are for, in order of draw."""
    groups: dict[tuple[str, int], list[Turn]] = {}
    for turn in tree.turns.values():
        # Turns of the dialogue itself have draws below this number.
        if turn.sample is not None and turn.draw >= FIRST_DRAW:
            groups.setdefault((turn.parent, turn.draw // FIRST_DRAW), []).append(turn)
    return [sorted(turns, key=lambda turn: turn.draw) for turns in groups.values()]


Score = Callable[[Tree, Sequence[Turn]], Awaitable[Sequence[float]]]


@dataclass(eq=False)
class BestOfSampler:
    """Sampler of the best of ``count`` candidates (SWEET-RL's figure 3a). The tree keeps the others as siblings."""

    sampler: TokenSampler
    count: int
    score: Score

    @property
    def width(self) -> int:
        return self.sampler.width

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the candidate with the highest score; the first one on ties."""
        seeds = [int(digest("best of", prompt.seed, n)[:15], 16) for n in range(self.count)]
        first_draw = FIRST_DRAW * (prompt.draw + 1)
        draws = range(first_draw, first_draw + self.count)
        candidates = await self.sampler.candidates(prompt, context, seeds, draws)
        # The tree keeps all candidates for the record; adding the best one again changes nothing.
        for candidate in candidates:
            prompt.tree.add(candidate.turn, candidate.request)
        scores = await self.score(prompt.tree, [candidate.turn for candidate in candidates])
        return candidates[max(range(self.count), key=lambda n: scores[n])]


ASSISTANT: Literal["assistant"] = "assistant"
Prompts = list[tuple[tuple[int, ...], Turn]]


def rows_from_messages(
    tokenizer: "PreTrainedTokenizerBase | ChatRenderer",
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    targets: Targets = "all",
    origin: str = "",
) -> list[Row]:
    """Return the training rows of a conversation in OpenAI's format: several if the template rewrites messages.

    Args:
        tokenizer: Tokenizer with a chat template, or its renderer.
        messages: Objects with ``role`` and ``content``, also ``tool_calls`` and ``reasoning_content``.
        tools: Functions in OpenAI's format that the template shows.
        targets: Train on all messages of the assistant, or on the last one.
        origin: Name of the conversation for errors.

    Raises:
        ValueError: If the messages cannot be trained on.
        UserError: If the template cannot show them.
    """
    parsed, schemas = parse_messages(messages), parse_tools(tools)
    if flaw := flaw_of(parsed, schemas):
        raise ValueError(flaw)
    conversation = Conversation(
        id="?", question="?", answer="?", messages=parsed, tools=schemas, origin=origin
    )
    return conversation_rows(_renderer(tokenizer), conversation, targets)


def pairs_from_messages(
    tokenizer: "PreTrainedTokenizerBase | ChatRenderer",
    prompt: Sequence[Mapping[str, Any]],
    chosen: Sequence[Mapping[str, Any]],
    rejected: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    origin: str = "",
) -> Pair:
    """Return the preference pair of two continuations of a prompt; see :func:`rows_from_messages`."""
    context, *sides = map(parse_messages, (prompt, chosen, rejected))
    schemas = parse_tools(tools)
    if flaw := next(filter(None, (flaw_of((*context, *side), schemas) for side in sides)), ""):
        raise ValueError(flaw)
    preference = Preference(
        id="?", question="?", answer="?", messages=(*context, *sides[0]), rejected=sides[1],
        start=len(context), tools=schemas, origin=origin,
    )  # fmt: skip
    return preference_pair(_renderer(tokenizer), preference)


def conversation_rows(
    renderer: ChatRenderer, conversation: Conversation, targets: Targets = "all"
) -> list[Row]:
    """Return the rows of a conversation, none if no message is trained.

    Raises ``UserError`` if the template cannot show it.
    """
    if targets == "last" and not conversation.messages[-1].is_trained:
        return []
    rows = _rows_after(renderer, conversation, conversation.messages)
    # Earlier replies stay in the row as context, without a loss on them.
    return [replace(rows[-1], targets=rows[-1].targets[-1:])] if targets == "last" else rows


def preference_pair(renderer: ChatRenderer, preference: Conversation) -> Pair:
    """Return the pair of a preference, whose targets are the assistant's messages after the prompt."""
    prompt = preference.messages[: preference.start]
    chosen, rejected = (
        tuple(_rows_after(renderer, preference, messages))
        for messages in (preference.messages, (*prompt, *preference.rejected))
    )
    return Pair(chosen, rejected)


def _rows_after(
    renderer: ChatRenderer, conversation: Conversation, messages: Sequence[ChatMessage]
) -> list[Row]:
    origin = conversation.origin
    try:
        prompts = _prompts(renderer, messages, conversation.tools, origin)
    except UserError as error:
        where = f"{origin}: " if origin else ""
        as_text = "write calls as text with tools.calls=tags, " * bool(conversation.tools)
        raise UserError(
            f"{where}{error.what}", f"{as_text}leave the row out, or use another model"
        ) from error
    # Replies in the prompt (examples, or the common beginning of a pair) are context only.
    count = sum(message.role == ASSISTANT for message in messages[: conversation.start])
    replies = [message for message in messages if message.role == ASSISTANT]
    trained = {
        turn.id
        for (_, turn), message in zip(prompts[count:], replies[count:], strict=True)
        if message.is_trained
    }
    # A template that rewrites earlier messages, such as old thoughts, gives several rows.
    training_rows = []
    for number, row in enumerate(rows(View(ASSISTANT, "file", assemble(prompts)))):
        targets = tuple(target for target in row.targets if target.turn in trained)
        name = f"{origin}/{number}" if number else origin
        training_rows.append(replace(row, targets=targets, origin=name))
    return [row for row in training_rows if row.targets]


def _renderer(tokenizer: "PreTrainedTokenizerBase | ChatRenderer") -> ChatRenderer:
    return tokenizer if isinstance(tokenizer, ChatRenderer) else ChatRenderer(tokenizer)


def _prompts(
    renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: tuple[Tool, ...], origin: str
) -> Prompts:
    tree, parent, prompts = Tree(origin, "file", 0), None, Prompts()
    history: list[Message] = []
    # OpenAI's format has a message for each result; the results of one reply become one turn.
    for is_result, group in groupby(messages, lambda message: message.role == "tool"):
        if is_result:
            results = tuple(ToolResult(message.results, message.content) for message in group)
            turn = make_turn(parent or tree.root, Speaker("tool", "tools"), (), results=results)
            history.append(Message("tool", turn=turn.id))
            tree.add(turn)
            parent = turn.id
            continue
        for message in group:
            if message.role != ASSISTANT:
                history.append(Message(message.role, (Part(message.content),)))
                continue
            # Some data sets write the thought inside the content. Separate it, as in a sampled
            # turn.
            marks = renderer.template.thoughts
            split = marks and marks.split(message.content, opened=False)
            if split and split.thought and not message.thought:
                parts = {"content": split.content, "thought": split.thought}
                message = message.model_copy(update=parts)
            # Every reply is paired with its own prompt, since a template may rewrite the history
            # before it.
            prompt = renderer.render(history, tree, ASSISTANT, tools=tools)
            ids = _reply_ids(renderer, message, history, tree, parent or tree.root, tools, prompt)
            turn = _turn(renderer, message, parent or tree.root, ids)
            tree.add(turn)
            parent = turn.id
            history.append(Message(ASSISTANT, turn=turn.id))
            prompts.append((prompt, turn))
    return prompts


def _turn(renderer: ChatRenderer, message: ChatMessage, parent: str, ids: tuple[int, ...]) -> Turn:
    text = renderer.format_turn(_whole(renderer, message))
    # Without ids this is the trial turn of ``_reply_ids``, whose calls the template formats.
    is_whole = ids or message.thought
    parts = renderer.parts(text, ASSISTANT, "data") if is_whole else (Part(message.content),)
    return make_turn(
        parent, Speaker("agent", ASSISTANT), parts, ids=ids, calls=message.calls, author="data"
    )


def _whole(renderer: ChatRenderer, message: ChatMessage) -> str:
    """Return content with its thought between the template's marks, or without it if the template has none."""
    marks = renderer.template.thoughts
    if not message.thought or marks is None:
        return message.content
    return f"{marks.open}{message.thought}{marks.close}{message.content}"


def _reply_ids(
    renderer: ChatRenderer,
    message: ChatMessage,
    history: Sequence[Message],
    tree: Tree,
    parent: str,
    tools: tuple[Tool, ...],
    prompt: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the tokens of a message as the model would sample them after its prompt, including the end of turn."""
    template, marks = renderer.template, renderer.template.thoughts
    # The prompt holds an empty thought (thinking is disabled), so no model would write one here.
    if marks and not marks.opened and template.opener.strip() and message.thought.strip():
        raise _not_written("a thought after its prompts; try template_args={enable_thinking: true}")
    if not message.calls:
        return renderer.encode_turn(_whole(renderer, message))
    # The template itself writes calls. Render the chat with this reply in a copy of the tree: the
    # tokens after the prompt are what the model would sample.
    plain = replace(_turn(renderer, message, parent, ()), draw=1)
    trial = Tree(tree.task, tree.stage, tree.iteration, dict(tree.turns), dict(tree.requests))
    trial.add(plain)
    chat = (*history, Message(ASSISTANT, turn=plain.id))
    full_ids = renderer.render(chat, trial, ASSISTANT, generation=False, tools=tools)
    size = common_length(prompt, full_ids)
    rest, ids = renderer.decode(prompt[size:]).strip(), full_ids[size:]
    # The chat may lack a thought that the prompt opened, but nothing else of the prompt.
    if rest and not (marks and marks.opened and rest == template.opener.strip()):
        raise _not_written("this call after its prompt")
    # Prompts may lack the header (DiffusionGemma after results), or open a thought that the text lacks.
    header = renderer.control.encode([template.core])
    ids = ids[len(header) :] if ids[: len(header)] == header else ids
    ids = renderer.encode_turn("", end=False) + ids if rest else ids
    # A template may omit text, calls or the thought of a message with calls. Training on the rest
    # would teach another message, so the row is refused.
    text, names = renderer.decode(ids), [call.name for call in message.calls]
    opening = renderer.tools.required().opening.search(text)
    content = renderer.control.break_up(message.content.strip(), ASSISTANT)
    if opening and content not in text[: opening.start()]:
        raise _not_written("the text of a message before its calls")
    if any(text.count(name) < names.count(name) for name in names):
        raise _not_written("all calls of a message")
    # Cut after the last end of turn, since templates add a line break; or add the end after calls.
    ends = [index for index, token in enumerate(ids) if token in renderer.end_ids]
    ids = ids[: ends[-1] + 1] if ends else ids + (tuple(renderer.tools.ends)[:1] or renderer.end)
    # The thought is missing. Insert it before the content, if the tokens begin with the content.
    if marks and message.thought.strip() not in text:
        content_ids = renderer.encode_turn(message.content, end=False)
        if ids[: len(content_ids)] != content_ids:
            raise _not_written("the thought of a message that calls")
        ids = renderer.encode_turn(_whole(renderer, message), end=False) + ids[len(content_ids) :]
    return ids


def _not_written(part: str) -> UserError:
    return UserError(f"the chat template does not write {part}", "use a model whose template does")
