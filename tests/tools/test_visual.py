"""Images for agents, from one folder or the web, shown to a stub model."""

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.engines.protocol import EngineGone
from coterie.tools.builtin import VisualInspector, VisualSettings
from coterie.tools.calls import Tags, ToolError, validate_calls
from tests.engines.test_endpoint import Service, says, service
from tests.engines.test_endpoint import settings as model_at
from tests.helpers.web_hosts import hosts

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def seer() -> Iterator[Service]:
    """Stands for a chat model that sees."""
    with service(says(200, {"choices": [{"message": {"content": "One red dot."}}]})) as model:
        yield model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images/deep").mkdir(parents=True)
    for name in ("images/deep/dot.png", "secret.png"):
        (tmp_path / name).write_bytes(PNG)
    return tmp_path / "images"


def look(tool: VisualInspector, image: str, question: str = "") -> str:
    async def one() -> str:
        async with tool.open() as functions:
            return await functions["visual_inspector"]({"file_path": image, "question": question})

    return asyncio.run(one())


def test_a_model_that_sees_is_given_the_image_and_the_question(folder: Path, seer: Service) -> None:
    tool = VisualInspector(VisualSettings(folder=str(folder), endpoint=model_at(seer.url)))
    assert look(tool, "deep/dot.png", "What colour is it?") == "One red dot."
    look(tool, "deep/../deep/dot.png")
    first, without, second, _ = seer.bodies
    assert without["messages"][1]["content"] == "Question: What colour is it?"
    image, text = first["messages"][1]["content"]
    assert base64.b64decode(image["image_url"]["url"].removeprefix("data:image/png;base64,")) == PNG
    assert text == {"type": "text", "text": "Question: What colour is it?"}
    assert second["messages"][1]["content"][1]["text"] == "Describe the image."
    assert first["max_tokens"] == 1000 and first["top_p"] == 0.1


@pytest.mark.parametrize(("tokens", "sees"), [((90, 50), True), ((50, 50), False)])
def test_a_server_that_ignores_images_ends_the_run(
    tokens: tuple[int, int], sees: bool, folder: Path
) -> None:
    choice = {"message": {"content": "One red dot."}}
    replies = [{"choices": [choice], "usage": {"prompt_tokens": count}} for count in tokens]
    with service(*(says(200, reply) for reply in replies)) as server:
        tool = VisualInspector(VisualSettings(folder=str(folder), endpoint=model_at(server.url)))
        if sees:
            assert look(tool, "deep/dot.png") == "One red dot."
        else:
            with pytest.raises(EngineGone, match="ignores pictures"):
                look(tool, "deep/dot.png")


@pytest.mark.parametrize("body", [
    "{}", "```json\n{}\n```", "\n```json\n{}```\n", "```{}", "```\n{}\n```",
])  # fmt: skip
def test_a_call_in_the_form_of_afms_traces_is_read(body: str, folder: Path, seer: Service) -> None:
    body = body.replace("{}", '{"file_path": "a|b.png",\n "question": "What is it?"}')
    tool = VisualInspector(VisualSettings(folder=str(folder), endpoint=model_at(seer.url)))
    (call,) = Tags(tool.tags).parse(f"<visual_inspector>{body}</visual_inspector>", "stop")
    (checked,) = validate_calls([call], tool.tools)
    assert not checked.error
    assert json.loads(checked.arguments) == {"file_path": "a|b.png", "question": "What is it?"}


def test_no_path_leads_out_of_the_folder(folder: Path, seer: Service) -> None:
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    (folder / "out").symlink_to(folder.parent)
    (folder / "loop.png").symlink_to(folder / "loop.png")
    os.mkfifo(folder / "pipe.png")
    tool = VisualInspector(VisualSettings(folder=str(folder), endpoint=model_at(seer.url)))
    for path in (
        "../secret.png", str(folder.parent / "secret.png"), "link.png", "out/secret.png", "loop.png", "pipe.png",
        "deep", "nowhere.png", "a\0b.png", "", "x" * 5000, "file:///etc/passwd",
    ):  # fmt: skip
        with pytest.raises(ToolError, match="there is no image"):
            look(tool, path)
    with pytest.raises(ToolError, match="there is no image"):
        look(VisualInspector(VisualSettings(endpoint=model_at(seer.url))), "deep/dot.png")
    assert not seer.bodies


def test_other_files_are_not_sent(folder: Path, seer: Service) -> None:
    (folder / "notes.png").write_text("a password")
    (folder / "large.png").write_bytes(PNG + b"0" * 5000)
    settings = VisualSettings(folder=str(folder), endpoint=model_at(seer.url), page_bytes=2000)
    for name, error in (("notes", "not an image of a kind"), ("large", "larger than 2,000 bytes")):
        with pytest.raises(ToolError, match=error):
            look(VisualInspector(settings), f"{name}.png")
    assert not seer.bodies


def test_images_of_the_web_are_under_the_rules_of_pages(seer: Service) -> None:
    with hosts() as host:
        host.pages["/dot.png"] = (PNG, "image/png")
        allowed = VisualSettings(endpoint=model_at(seer.url), private_hosts=(host.name,))
        assert look(VisualInspector(allowed), f"{host.url}/dot.png") == "One red dot."
        with pytest.raises(ToolError, match="it is text/html, which is not read"):
            look(VisualInspector(allowed), f"{host.url}/oslo")
        own = VisualInspector(VisualSettings(endpoint=model_at(seer.url)))
        with pytest.raises(ToolError, match="may not be read"):
            look(own, f"{host.url}/dot.png")
        assert host.asked == {"/dot.png": 1, "/oslo": 1}
