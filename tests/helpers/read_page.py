"""Answers inside a page that `coterie report`, `evaluate`, `sweep` or `view --export` wrote."""

import html
import json
import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r'<script type="application/json" data-key="(.*?)">(.*?)</script>', re.DOTALL)


def read_page(file: Path) -> dict[str, list[Any]]:
    """Return the answers of a page by route, each with its parameters as ``params``."""
    answers: dict[str, list[Any]] = {}
    for key, text in BLOCK.findall(file.read_text("utf-8")):
        route, params = json.loads(html.unescape(key))
        answer = json.loads(text)
        answers.setdefault(route, []).append(
            answer | {"params": params} if isinstance(answer, dict) else answer
        )
    return answers


def sections_of(file: Path) -> dict[str, Any]:
    """Return the tables and charts of a page by id."""
    (answer,) = read_page(file)["sections"]
    return {section["id"]: section for section in answer["sections"]}


def chart_of(section: dict[str, Any], title: str) -> dict[str, Any]:
    """Return the chart with a title, with the steps of its section, and its series by name."""
    (chart,) = (chart for chart in section["charts"] if chart["title"] == title)
    series = {series["name"]: series for series in chart["series"]}
    return {"steps": section.get("steps"), **chart, "series": series}
