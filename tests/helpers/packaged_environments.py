"""Environments by name, on the rows that ship: ``packaged_dialogue("gsm8k", "environment.agents=3")``."""

from pathlib import Path
from typing import cast

import yaml

from coterie.datasets.load import distinct_passages, rows_of, write_passages
from coterie.environments.coding import Coding
from coterie.environments.dialogue import Dialogue
from coterie.environments.protocol import Environment
from coterie.environments.registry import PACKAGED, PLAYED_IN, make_environment
from coterie.runs.benchmark import BenchmarkSettings, benchmark_settings


def packaged_settings(name: str, *overrides: str) -> BenchmarkSettings:
    is_packaged_set = name in PLAYED_IN and name in PACKAGED
    sample = ["dataset.source=sample"] if is_packaged_set else []
    return benchmark_settings(BenchmarkSettings, name, [*sample, *overrides])


def packaged_environment(name: str, *overrides: str) -> Environment:
    return make_environment(packaged_settings(name, *overrides))


def packaged_dialogue(name: str, *overrides: str) -> Dialogue:
    return cast(Dialogue, packaged_environment(name, *overrides))


def packaged_coding(name: str, *overrides: str) -> Coding:
    return cast(Coding, packaged_environment(name, *overrides))


def wiki_tools(folder: Path) -> Path:
    """Write settings of a search over the passages of 2Wiki's rows that ship."""
    write_passages(distinct_passages(rows_of("2wiki", ["sample"])), folder / "passages.jsonl")
    entry = {"name": "wiki_search", "corpus": str(folder / "passages.jsonl"), "topk": 1}
    (folder / "tools.yaml").write_text(yaml.safe_dump({"tools": [entry]}))
    return folder / "tools.yaml"
