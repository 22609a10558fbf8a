"""Episodes in the record of a run as conversations and preferences, with the exact tokens of their turns."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from coterie.config.folders import expanded
from coterie.config.settings import PathText, key
from coterie.datasets.catalogue import Split
from coterie.datasets.conversations import Conversation, Conversations, Preference
from coterie.datasets.messages import ChatMessage
from coterie.datasets.question_files import HeldOutSettings, hash_json
from coterie.errors import UserError
from coterie.record.rows import Row, rows, view
from coterie.record.store import Store
from coterie.record.tree import FINAL_REWARD, Outcome, Tree
from coterie.record.turn import THOUGHT, Message, Request, Turn

MEASURES = ("evaluate", "measure", "probe")
"""Stages whose episodes are not for training."""


class RecordedSettings(HeldOutSettings):
    """Settings of the record of a run."""

    source: PathText = key("", "Run folder, such as of `coterie gateway`.")
    role: str | None = key(None, "Role whose turns are trained. Default: all roles.")
    threshold: float = key(0.5, "Minimum reward of an episode, or of the chosen one of a pair.")
    top_share: float = key(
        1.0, "Share of each task's episodes to keep, by reward; at least one.", gt=0, le=1
    )


@dataclass(frozen=True, slots=True)
class RoleEpisode:
    """The turns of a role in an episode."""

    id: str
    reward: float
    request: Request
    prompt: tuple[ChatMessage, ...]
    """Messages of the role's first prompt."""
    reply: ChatMessage
    """Its first turn."""
    rows: tuple[Row, ...]


class RecordedEpisodes(Conversations):
    """The best episodes of each task, which are a conversation for each of their roles."""

    settings_type = RecordedSettings

    def read_splits(self) -> tuple[dict[Split, list[Any]], bool]:
        rows = [row for of_task in self._by_task.values() for row in self.rows_of(of_task)]
        if not rows:
            counts = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            problem = (
                f"{self.settings.source} has no episode to train on ({counts or 'it has none'})"
            )
            raise UserError(problem, "lower dataset.threshold, or record more episodes")
        return {"train": rows}, False

    def content(self) -> str:
        """Return a hash of the episodes and of the settings."""
        ids = [[episode.id for episode in of_task] for of_task in self._by_task.values()]
        return hash_json([ids, self.settings.model_dump_json(exclude={"name", "source"})])

    def rows_of(self, episodes: list[RoleEpisode]) -> Iterator[Conversation]:
        """Yield the rows of the episodes of a task and role, which are in the order of their rewards."""
        best = episodes[: ceil(len(episodes) * self.settings.top_share)]
        for episode in episodes:
            if episode in best and episode.reward >= self.settings.threshold:
                yield self._row(Conversation, episode)
            else:
                self.left_out["below dataset.threshold or outside of dataset.top_share"] += 1

    def _row(self, kind: type[Conversation], *sides: RoleEpisode) -> Any:
        first, *others = sides
        texts = [message.text for message in first.prompt if message.text.strip()]
        return kind(
            id=" over ".join(side.id for side in sides),
            question=texts[-1] if texts else "(no text)",
            answer=first.reply.text or "(no text)",
            messages=(*first.prompt, first.reply),
            tools=first.request.tools,
            rejected=tuple(side.reply for side in others),
            start=len(first.prompt),
            origin=first.id,
            recorded=tuple(side.rows for side in sides),
        )

    @cached_property
    def _by_task(self) -> dict[tuple[str, str], list[RoleEpisode]]:
        """Episodes by task and role, those with the highest reward first."""
        by_task = defaultdict[tuple[str, str], list[RoleEpisode]](list)
        file = expanded(self.settings.source) / "store.sqlite"
        if not file.is_file():
            raise UserError(f"{self.settings.source} is no run with a record", "give a run folder")
        with Store.open(file, read_only=True) as store:
            for tree_key in store.tree_keys():
                if tree_key[2].partition("/")[0] not in MEASURES:
                    for task, role, episode in self._episodes(store, store.read_tree(tree_key)):
                        by_task[task, role].append(episode)
        role_name, roles = self.settings.role, sorted({role for _, role in by_task})
        if role_name is not None and roles and role_name not in roles:
            problem = f"dataset.role={role_name} has no turns in {self.settings.source}"
            raise UserError(problem, f"its roles are {', '.join(roles)}")
        return {
            (task, role): sorted(episodes, key=lambda episode: -episode.reward)
            for (task, role), episodes in sorted(by_task.items())
            if role_name in (None, role)
        }

    def _episodes(self, store: Store, tree: Tree) -> Iterator[tuple[str, str, RoleEpisode]]:
        rewards = {(credit.node, credit.name): credit.value for credit in store.credit_of(tree)}
        for outcome, path in tree.trajectories():
            if outcome.score is None:
                self.left_out["without a score"] += 1
                continue
            first_turns = {turn.speaker.name: turn for turn in reversed(path) if turn.prompt}
            for role, turn in first_turns.items():
                of_role = rewards.get((outcome.leaf, f"{FINAL_REWARD}:{role}"), outcome.score)
                yield tree.task, role, _episode(tree, outcome, role, turn, of_role)


class RecordedPairs(RecordedEpisodes):
    """Pairs of the best episode of a task and each episode with a lower reward."""

    row = Preference

    def rows_of(self, episodes: list[RoleEpisode]) -> Iterator[Conversation]:
        best = episodes[0]
        for episode in episodes[1:]:
            tokens = [[row.ids for row in side.rows] for side in (best, episode)]
            is_pair = episode.reward < best.reward and tokens[0] != tokens[1]
            if best.reward < self.settings.threshold or not is_pair:
                self.left_out["below dataset.threshold, of equal rewards or of equal tokens"] += 1
            else:
                yield self._row(Preference, best, episode)


def _episode(tree: Tree, outcome: Outcome, role: str, turn: Turn, reward: float) -> RoleEpisode:
    request = tree.requests[turn.prompt or ""]
    prompt = tuple(_message(tree, message) for message in tree.messages(request))
    trained = tuple(row for row in rows(view(tree, outcome.leaf, role)) if row.targets)
    reply = ChatMessage(role="assistant", content=_text(turn), calls=turn.calls)
    return RoleEpisode(f"{outcome.leaf}/{role}", reward, request, prompt, reply, trained)


def _message(tree: Tree, message: Message) -> ChatMessage:
    parts = "".join(part.text for part in message.parts)
    turn = None if message.turn is None else tree.turns[message.turn]
    role = message.role if message.role in ("system", "assistant") else "user"
    return ChatMessage(role=role, content=parts or (_text(turn) if turn else ""))


def _text(turn: Turn) -> str:
    return "".join(part.text for part in turn.parts if part.source != THOUGHT)
