"""Frontend design: an agent makes a web page for a user who has a page in mind (ColBench, arXiv 2503.15478).

The answer is the page of the agent's last message that has one: its HTML from ``<html>``, or else from ``<body>``. Only
this page is rendered for the score, its similarity with the user's page.
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from coterie.config.settings import key
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.datasets.web_pages import PICTURE, WebSightRow, outline, page_in, text_of
from coterie.engines.chat_model import ChatModel
from coterie.engines.endpoint import Utterance
from coterie.engines.protocol import LEFT_OUT, EngineError
from coterie.environments.code_blocks import MARKER, OUTPUT
from coterie.environments.collaboration import (
    REFERENCE,
    Collaboration,
    CollaborationSettings,
    collaboration_task,
    visible,
)
from coterie.environments.dialogue import LENGTH_RULE
from coterie.environments.protocol import (
    AGENT,
    WELL_FORMED,
    Grade,
    Openers,
    Shared,
    State,
    Transition,
)
from coterie.environments.qa_metrics import GRADER
from coterie.environments.settings import RowTasks
from coterie.environments.user_simulator import (
    PERSON,
    ModelUserSimulator,
    TranscriptLine,
    UserSimulator,
    UserSimulatorSettings,
)
from coterie.record.tree import ANSWERED, Task
from coterie.record.turn import Part, Turn, digest
from coterie.tools.render import Renderer, RenderSettings, Screenshot
from coterie.tools.similarity import Page, Similarity, SimilaritySettings

PATIENCE = 4
"""Factor of the time limit of a task's own page when it is rendered again."""
SIMILARITY = "similarity"
OUTLINE = 1500
"""Maximum characters of the description of a page for a user that sees no pictures."""
STYLES = "https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css"
_FORM = (
    f"- A page is complete HTML from <html> to </html>, in the classes of Tailwind CSS 2.2 ({STYLES}). Fill it with "
    "real, complete sentences about its subject.\n"
    f"- Pictures are optional, and all have the address {PICTURE}/WIDTH/HEIGHT.\n"
    f"{LENGTH_RULE}"
)


def work(turns: int) -> str:
    """Return the system prompt of an agent that shows pages, with ``turns`` messages in all."""
    return (
        "You design web pages. A person asks you for a page and already has one in mind, but the request tells little "
        "of it.\n"
        "Rules:\n"
        "- Show one page in each message. The person sees a picture of the page and nothing else of your message, so "
        "do not ask questions. The reply tells how your page differs from the page in mind.\n"
        "- Change these parts and keep the others: layout, bars, colors of backgrounds, texts.\n"
        f"{_FORM}"
        f"- You may begin with thoughts about open points, then {OUTPUT} and the message itself.\n"
        f"- Number of messages that you can send: {turns}. You are judged by your last page, and by how few messages "
        f"you need. When the page is right, or with your last message, write {MARKER} and then the final page."
    )


AT_ONCE = (
    "You design web pages. A person asks you for a page and already has one in mind. You cannot ask questions: your "
    f"first message has the final page.\nRules:\n{_FORM}- Write {MARKER} and then the page."
)


USER_PROMPT = (
    "Play a person who asked a designer for a web page and has a page in mind, called your own page. Compare the "
    "designer's page with it.\n\n"
    "{pages}\n\n"
    "Write to the designer:\n"
    "- Name the few differences that matter most, the largest first: layout, bars, colors of backgrounds, missing or "
    "superfluous parts, texts. Say for each which part it is, how it is now and how it must be.\n"
    "- Use plain words, without HTML or names of classes, and at most {max_characters} characters.\n"
    "- Without a page of the designer, ask for one. If both pages look the same, say that the page is right.\n"
    "Write the message alone."
)


class FrontendSettings(CollaborationSettings):
    """Settings of an agent that designs web pages."""

    user_sees: Literal["pictures", "descriptions"] = key(
        "pictures",
        "What a user behind user_simulator.url gets of both pages: `pictures` need a vision model, `descriptions` are "
        "of the HTML. A model that coterie loads gets descriptions.",
        source="ColBench: pictures (Qwen2-VL-72B-Instruct)",
    )
    similarity: SimilaritySettings = SimilaritySettings()
    render: RenderSettings = RenderSettings()

    def identity(self) -> str:
        values = self.model_dump(mode="json", exclude={"name", "render", "similarity"})
        size = (self.render.width, self.render.height, self.render.seconds)
        return digest(values, size, self.similarity.name)


class PageRenderer(Renderer):
    """Renderer whose second try decides which tasks are left out, so that a slow machine does not."""

    def __init__(self, settings: RenderSettings | None = None) -> None:
        super().__init__(settings)
        self._tried_again = dict[str, Screenshot]()

    async def render(self, html: str, patience: float = 1) -> Screenshot:
        return self._tried_again.get(html) or await super().render(html, patience)

    async def reference(self, task: Task, reader: str) -> bytes:
        """Return the PNG of a task's page. Raises ``EngineError`` if it fails twice, the second time with more time."""
        html = task.secrets[REFERENCE].reveal(reader)
        html = page_in(html) or html
        shot = await self.render(html)
        if shot.failure and html not in self._tried_again:
            shot = self._tried_again[html] = await self.render(html, PATIENCE)
        if shot.failure:
            problem = f"the page of task {task.id} does not render ({shot.failure})"
            raise EngineError(LEFT_OUT + problem)
        return shot.png


class Frontend(Collaboration):
    """Dialogue of an agent and a user about a web page. Subclasses define the tasks."""

    name = "frontend"
    needs: tuple[type, ...] = (PageRenderer, Similarity)
    settings_type = FrontendSettings
    settings: FrontendSettings
    reward = SIMILARITY
    user_prompt = USER_PROMPT
    user_values = ("pages",)

    def __init__(self, settings: FrontendSettings) -> None:
        super().__init__(settings)
        self.metric = f"{SIMILARITY} ({settings.similarity.name})"

    def openers(self, logs: Path) -> Openers:
        return {
            PageRenderer: partial(PageRenderer, self.settings.render),
            Similarity: partial(Similarity, self.settings.similarity),
        }

    def chat_user(
        self, chat: ChatModel, settings: UserSimulatorSettings, shared: Shared
    ) -> UserSimulator:
        """Return the user that a chat model plays."""
        user = PageUser(chat, settings, self)
        if settings.url is not None and self.settings.user_sees == "pictures":
            user.renderer = shared[PageRenderer]
        return user

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(work(self.max_turns), source="task"),)

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(AT_ONCE, source="task"),)

    def page(self, text: str) -> str | None:
        """Return the page of a message, without thoughts."""
        return page_in(visible(text))

    def answer_to(self, task: Task, text: str) -> str | None:
        return self.page(text)

    async def begin(self, task: Task, session: Any) -> Transition:
        if PageRenderer in session:
            await session[PageRenderer].reference(task, GRADER)
        return await super().begin(task, session)

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        """End at the marker or the agent's last turn. The answer is the newest page."""
        done = await super().act(state, turns, session, replayed=replayed)
        turn = turns[-1]
        return done if turn.speaker.name == PERSON else replace(done, answer=self.page(turn.text))

    async def grade(self, state: State, session: Any) -> Grade:
        """Score the similarity of the answer and the reference; 0 without a page that renders."""
        task, answer = state.task, state.answer
        renderer: PageRenderer = session[PageRenderer]
        similarity: Similarity = session[Similarity]
        png, html = await renderer.reference(task, GRADER), task.secrets[REFERENCE].reveal(GRADER)
        reference = Page(png, await asyncio.to_thread(text_of, html))
        shot = None if answer is None else await renderer.render(answer)
        page = None
        if answer and shot and shot.png:
            page = Page(shot.png, await asyncio.to_thread(text_of, answer))
        (result,) = await similarity.compare([(reference, page)])
        if result.score is None:
            raise EngineError(f"{LEFT_OUT}the page of task {task.id} looks blank")
        metrics: dict[str, float | int | str] = {
            SIMILARITY: result.score,
            "raw": result.raw,
            "measure": similarity.name,
            "turns": sum(turn.speaker.name == AGENT for turn in state.turns),
            "no_page": float(answer is None),
            "not_rendered": float(shot is not None and not shot.png),
            WELL_FORMED: float(state.end == ANSWERED and answer is not None),
        }
        if shot is not None and shot.failure:
            metrics["why"] = shot.failure
        return Grade(result.score, metrics)


class FrontendDesign(RowTasks, Frontend):
    """Frontend Design, with a model as the user."""

    row_types: tuple[type[QuestionRow], ...] = (WebSightRow,)

    def __init__(self, settings: FrontendSettings, rows: Rows) -> None:
        super().__init__(settings)
        self.name = rows.name
        self.rows = rows

    def task_of(self, row: QuestionRow) -> Task:
        return collaboration_task(f"{self.name}-{row.id}", row.question, row.answer)


class PageUser(ModelUserSimulator):
    """A chat model that compares the agent's last page with the page in mind, in pictures or in descriptions."""

    max_characters = 1000
    renderer: PageRenderer | None = None

    async def prompt(
        self, task: Task, transcript: Sequence[TranscriptLine], **more: str
    ) -> Utterance:
        page, pictures = page_in(transcript[-1][1]), list[bytes]()
        if self.renderer is None:
            html = task.secrets[REFERENCE].reveal(PERSON)
            goal = await asyncio.to_thread(outline, html, OUTLINE)
            page_text = await asyncio.to_thread(outline, page, OUTLINE) if page else "(no page)"
            text = f"Your own page:\n{goal}\n\nThe designer's page:\n{page_text}"
        else:
            pictures = [await self.renderer.reference(task, PERSON)]
            text = "There is one picture: your own page. The designer has shown no page."
            if page and (shot := await self.renderer.render(page)).png:
                pictures.insert(0, shot.png)
                text = (
                    "The first picture is the designer's page, the second picture is your own page."
                )
            elif page:
                text = "There is one picture: your own page. The designer's page is broken and shows nothing."
        urls = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pictures)
        prompt = await super().prompt(task, transcript, pages=text, **more)
        return replace(prompt, images=tuple(urls))
