"""Pictures of the web pages of examples: the reference, and the answer of each sample."""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from coterie.config.folders import whole_file
from coterie.engines.protocol import EngineError
from coterie.environments.collaboration import REFERENCE
from coterie.environments.pages.frontend import Frontend
from coterie.environments.protocol import Environment, innermost
from coterie.environments.qa_metrics import GRADER
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.record.turn import digest
from coterie.reports.examples import Example, Shown
from coterie.tools.render import Renderer
from coterie.tools.retrieval import need

WIDTH, MAX_HEIGHT = 420, 700


def add_pictures(
    examples: Sequence[tuple[Example, Task, Sequence[Shown]]],
    environment: Environment,
    folder: Path,
) -> tuple[Example, ...]:
    """Add pictures to the examples of web pages. Store them in ``folder``. Without a browser add none."""
    frontend = innermost(environment)
    if not isinstance(frontend, Frontend):
        return tuple(example for example, *_ in examples)
    pages = [
        [("reference", task.secrets[REFERENCE].reveal(GRADER)), *map(_page, samples)]
        for _, task, samples in examples
    ]
    # Files are named by their pages, so that equal pages are rendered once.
    files = {
        html: folder / f"{digest(html)[:24]}.png"
        for sample_pages in pages
        for _, html in sample_pages
        if html
    }
    missing = {html: file for html, file in files.items() if not file.exists()}
    try:
        if missing:
            asyncio.run(_render(frontend, missing))
    # Pictures are optional, so a missing browser is no error of the report.
    except (UserError, EngineError):
        return tuple(example for example, *_ in examples)
    return tuple(
        replace(
            example,
            pictures=tuple((name, _url(files.get(html or ""))) for name, html in sample_pages),
        )
        for (example, *_), sample_pages in zip(examples, pages, strict=True)
    )


def _page(sample: Shown) -> tuple[str, str | None]:
    score = dict(sample.facts).get("score", "")
    return f"{sample.name}: similarity {score}" + ", no page" * (not sample.answer), sample.answer


async def _render(environment: Frontend, files: dict[str, Path]) -> None:
    """Render pages. A page that does not render has no file, and is tried again for the next report."""
    async with Renderer(environment.settings.render) as renderer:
        for html, file in files.items():
            if png := (await renderer.render(html)).png:
                with whole_file(file) as part:
                    part.write_bytes(_small(png))


def _small(png: bytes) -> bytes:
    image = need("PIL.Image", "frontend").open(BytesIO(png)).convert("RGB")
    image = image.resize((WIDTH, max(1, image.height * WIDTH // image.width)))
    # Long pages are cut, and few colors keep the report small.
    image = image.crop((0, 0, WIDTH, min(image.height, MAX_HEIGHT))).quantize(64)
    image.save(data := BytesIO(), "png", optimize=True)
    return data.getvalue()


def _url(file: Path | None) -> str:
    if file is None or not file.exists():
        return ""
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
