"""The README.md of an exported model: what it is, how good it is, by which settings it was made."""

import re

import yaml

import coterie
from coterie.config.resolve import flatten
from coterie.recipes.base import Recipe
from coterie.recipes.registry import settings
from coterie.runs.folder import Run
from coterie.runs.held_out import evaluation
from coterie.runs.place import EVALUATION

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def model_card(recipe: Recipe, run: Run, role: str, version: int, *, adapter: bool) -> str:
    """The card of a version of a role. Its settings are a file for ``coterie run --config``."""
    s = recipe.settings
    base = next(one.model for one in recipe.roles() if one.name == role)
    head: dict[str, object] = {"library_name": "peft" if adapter else "transformers"}
    if HUB_NAME.fullmatch(base):
        head["base_model"] = base
    head["tags"] = ["coterie", recipe.name.partition("/")[0]]
    kind = "A LoRA adapter of" if adapter else "Trained from"
    after = (
        f"version {version} of the role `{role}`, after {version} iterations"
        if version
        else "untrained"
    )
    return "\n".join([
        "---", yaml.safe_dump(head, sort_keys=False).rstrip(), "---", "",
        f"# {recipe.title} on {s.played}", "",
        f"{kind} `{base}` by `{recipe.name}` of coterie {coterie.__version__}: {after}.", "",
        *_figures(recipe, run),
        "## Settings", "",
        "Those that differ from the preset of coterie. `coterie run --config FILE` takes them.", "",
        "```yaml", _changed(recipe), "```", "",
    ])  # fmt: skip


def _figures(recipe: Recipe, run: Run) -> list[str]:
    """Scores and tokens on held-out tasks, of all policies of the run."""
    done = [one for one in recipe.steps() if one.stage == EVALUATION and run.is_finished(one)]
    if not done:
        return []
    lines = ["## Figures", "", "On held-out tasks; policy 0 is the base.", "",
             "| policy | score | 95% interval | tokens | tasks |", "|---|---|---|---|---|"]  # fmt: skip
    for step in done:
        at = evaluation(run.store, step.iteration)
        lines.append(
            f"| {at.version} | {at.score:.3f} | {at.low:.3f} to {at.high:.3f} | {at.tokens:.1f} | {at.n} |"
        )
    return [*lines, ""]


def _changed(recipe: Recipe) -> str:
    s = recipe.settings
    chosen = {
        "dataset.name": s.dataset.name,
        "environment.name": s.environment.name,
        "model": s.model,
    }
    words = [f"{name}={value}" for name, value in chosen.items() if value is not None]
    preset = settings(recipe.name, words)
    usual = flatten(preset.model_dump(mode="json"))
    values = flatten(s.model_dump(mode="json"))
    changed = {path: value for path, value in values.items() if value != usual[path]}
    given = {name: value for name, value in chosen.items() if value is not None}
    written = {"recipe": recipe.name, **given, **changed}
    return str(yaml.safe_dump(written, sort_keys=False)).rstrip()
