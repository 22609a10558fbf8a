"""``coterie export model``: write a folder for Transformers or PEFT, and upload it."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml
from huggingface_hub import HfApi

import coterie
from coterie.config.folders import check_new_folder, whole_folder
from coterie.config.resolve import flatten
from coterie.errors import UserError, did_you_mean
from coterie.models.loading import (
    ADAPTER_FILE,
    TOKENIZER_FILES,
    is_adapter,
    load,
    writing,
)
from coterie.recipes.base import Recipe, recorded_run
from coterie.recipes.registry import settings
from coterie.runs.folder import Run
from coterie.runs.items import evaluation
from coterie.runs.loop import EVALUATION
from coterie.terminal import notes

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def _model_card(recipe: Recipe, run: Run, role: str, version: int, *, adapter: bool) -> str:
    """Return the model card of a version of a role. Its settings are valid for ``coterie run --config``."""
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
        "Settings that differ from the preset of coterie, for `coterie run --config FILE`.", "",
        "```yaml", _changes(recipe), "```", "",
    ])  # fmt: skip


def _figures(recipe: Recipe, run: Run) -> list[str]:
    """Return a table of held-out scores and tokens of all policies."""
    done = [one for one in recipe.steps() if one.stage == EVALUATION and run.is_finished(one)]
    if not done:
        return []
    lines = ["## Figures", "", "On held-out tasks; policy 0 is the base.", "",
             "| policy | score | 95% interval | tokens | tasks |", "|---|---|---|---|---|"]  # fmt: skip
    for step in done:
        point = evaluation(run.store, step.iteration)
        interval = f"{point.low:.3f} to {point.high:.3f}"
        lines.append(
            f"| {point.version} | {point.score:.3f} | {interval} | {point.tokens:.1f} | {point.n} |"
        )
    return [*lines, ""]


def _changes(recipe: Recipe) -> str:
    s = recipe.settings
    choice = {
        "dataset.name": s.dataset.name,
        "environment.name": s.environment.name,
        "model": s.model,
    }
    names = {name: value for name, value in choice.items() if value is not None}
    preset = settings(recipe.name, [f"{name}={value}" for name, value in names.items()])
    defaults = flatten(preset.model_dump(mode="json"))
    values = flatten(s.model_dump(mode="json"))
    changes = {path: value for path, value in values.items() if value != defaults.get(path)}
    card = {"recipe": recipe.name, **names, **changes}
    return str(yaml.safe_dump(card, sort_keys=False)).rstrip()


FILES = ("*.safetensors", "*.safetensors.index.json", "config.json", ADAPTER_FILE, *TOKENIZER_FILES)
"""Files of a checkpoint that an export includes."""


@dataclass(frozen=True, slots=True)
class Export:
    """Options of an export."""

    folder: Path
    out: Path
    merge: bool = False
    role: str | None = None
    iteration: int | None = None


def export(what: Export, push: str | None, *, private: bool = False) -> None:
    """Write the folder, then upload it if ``push`` names a repository. Check both before a model is loaded."""
    check_new_folder(what.out, "remove it, or give --out another name")
    repo = None if push is None else _create_repo(push, private)
    with recorded_run(what.folder) as (recipe, run):
        role = checked_role(recipe, what.role)
        version = exported_version(recipe, run, role, what.iteration)
        path = recipe.policy_path(run, version, role)
        if what.merge and not is_adapter(path):
            raise UserError(
                f"--merge: version {version} of {role!r} is a full model, not an adapter",
                "leave --merge out",
            )
        with whole_folder(what.out) as partial:
            _write(recipe, run, role, version, partial, merge=what.merge)
            card = _model_card(recipe, run, role, version, adapter=is_adapter(partial))
            (partial / "README.md").write_text(card, encoding="utf-8")
    if repo is not None:
        _upload(repo, what.out)


def _write(
    recipe: Recipe, run: Run, role: str, version: int, partial: Path, *, merge: bool
) -> None:
    path = recipe.policy_path(run, version, role)
    if version and not merge:
        for file in sorted({file for one in FILES for file in Path(path).glob(one)}):
            shutil.copyfile(file, partial / file.name)
        if is_adapter(path):
            base = next(one.model for one in recipe.roles() if one.name == role)
            load(base).tokenizer.save_pretrained(partial)
        return
    loaded = recipe.load_policy(run, version, role, merge=True)
    with writing(partial):
        loaded.model.save_pretrained(partial)
    loaded.tokenizer.save_pretrained(partial)


def checked_role(recipe: Recipe, name: str | None) -> str:
    """Return the name of a role, by default the first. Raise ``UserError`` if it is unknown."""
    names = [role.name for role in recipe.roles()]
    if name is not None and name not in names:
        raise UserError(
            f"{recipe.name} has no role {name!r}",
            f"{did_you_mean(name, names)}use one of: {', '.join(names)}",
        )
    return name or names[0]


def exported_version(recipe: Recipe, run: Run, role: str, version: int | None) -> int:
    """Return a version of a role, by default the newest. Raises ``UserError`` if it does not exist."""
    versions = recipe.versions(run, role)
    if version is not None and version not in versions:
        names = ", ".join(map(str, versions))
        raise UserError(
            f"{run.folder} has no version {version} of {role!r}; it has {names} (0 is the base)",
            "give one of these with --iteration, or continue the run",
        )
    if version is None and versions[-1] == 0:
        raise UserError(
            f"{run.folder} has not trained {role!r} yet",
            "continue the run, or give --iteration 0 for the base",
        )
    return versions[-1] if version is None else version


def _create_repo(name: str, private: bool) -> str:
    """Create a repository before a model is loaded, since the hub checks name, token and rights. Return its name."""
    try:
        return HfApi().create_repo(name, private=private or None, exist_ok=True).repo_id
    # The client raises errors of several libraries and wraps some of them.
    except Exception as error:
        raise UserError(
            f"--push {name}: {_reason(error)}",
            "check the name OWNER/NAME, the network, and the token (`hf auth login`, or HF_TOKEN with write access)",
        ) from error


def _upload(name: str, folder: Path) -> None:
    try:
        commit = HfApi().upload_folder(
            repo_id=name, folder_path=folder, commit_message="coterie export"
        )
    except Exception as error:
        raise UserError(
            f"the upload to {name} failed: {_reason(error)}",
            f"{folder} is written; check the name and the token, then run: hf upload {name} {folder}",
        ) from error
    notes().print(f"uploaded to {commit.repo_url}")


def _reason(error: Exception) -> str:
    return str(error.__cause__ or error).strip().partition("\n")[0]
