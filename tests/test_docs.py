"""Documents that are generated are current, and what they name exists."""

import re
from pathlib import Path

from coterie.cli.config_page import config_markdown

ROOT = Path(__file__).parent.parent


def test_the_page_of_settings_is_current() -> None:
    assert (ROOT / "docs/config.md").read_text() == config_markdown(), "run `make docs`"


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_make_targets_and_commands_in_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    source = (ROOT / "src/coterie/cli/app.py").read_text()
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        text = page.read_text()
        for target in re.findall(r"`make ([a-z-]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"
        for command in re.findall(r"(?:`|^ {4})coterie ([a-z]+)", text, re.MULTILINE):
            assert f"def {command}(" in source or f'"{command}"' in source, f"{page}: {command}"
