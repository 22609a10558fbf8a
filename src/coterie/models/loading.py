"""Load a causal language model (safetensors only) and its tokenizer. Unusable models are refused before weights.

A model is a checkpoint packaged with coterie (``tiny-exchange``), an entry of ``models.catalogue`` (``smollm2``),
a folder, or a name on the Hugging Face hub.
"""

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from huggingface_hub import constants, get_session
from huggingface_hub.errors import StrictDataclassError
from pydantic import ValidationError
from safetensors import SafetensorError

from coterie.config.folders import expanded, sha256, today
from coterie.errors import UserError
from coterie.models.catalogue import (
    ADAPTER_FILE,
    check_hub_name,
    converted_folder,
    count_weights,
    packaged_folder,
)
from coterie.models.chat import ChatRenderer

if TYPE_CHECKING:  # torch takes seconds to import, and so do Transformers' classes
    import torch
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

TOKENIZER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template*", "*.model", "generation_config.json",
)  # fmt: skip
"""Files of a model folder that determine prompts and ends of turns."""
CAUSAL = ("ForCausalLM", "LMHeadModel")
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError)
"""Errors that Transformers raises for a broken JSON file of a model."""
DAMAGE = (
    SafetensorError, json.JSONDecodeError, UnicodeDecodeError, KeyError, FileNotFoundError, ValidationError,
)  # fmt: skip
"""Errors from reading a truncated file or an incomplete folder."""
COPY = "restore it from a backup, or create it again"
MOST_RENDERERS = 8
"""Maximum number of shared renderers."""
TRIES = 2
TIMEOUT = 5.0
"""Timeout of each try to reach the hub, in seconds."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LoadedModel:
    """A model ready to sample, score or train."""

    model: Any
    """A Transformers causal language model, in evaluation mode."""
    tokenizer: "PreTrainedTokenizerBase"
    renderer: ChatRenderer
    context_length: int
    """Maximum number of tokens in a sequence."""
    source: str
    """Folder or hub name of the model."""

    def save(self, folder: str | Path) -> None:
        """Write weights, config and tokenizer into a folder, which :func:`load` and Transformers read."""
        from coterie.models.saving import save_model

        save_model(self.model, expanded(folder))


def load(
    name_or_path: str | Path,
    *,
    dtype: "torch.dtype | None" = None,
    device: "str | torch.device" = "cpu",
    template_args: Mapping[str, Any] | None = None,
    attention: str | None = None,
    load_in_4bit: bool = False,
) -> LoadedModel:
    """Load a packaged model, catalogue entry, folder or hub name for evaluation.

    ``dtype`` is float32 if not given, ``template_args`` are arguments of the chat template, ``attention`` is
    Transformers' ``attn_implementation``. ``load_in_4bit`` stores the weights of linear layers in 4 bits, which
    bitsandbytes converts to ``dtype`` to compute.
    """
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    dtype = dtype or torch.float32
    source = resolve(name_or_path)
    config = _config(source)
    renderer, length = _new_renderer(source, template_args)
    check_safetensors(source)
    # In 4 bits this is a lower bound: embeddings and norms keep their dtype.
    size = count_weights(Path(source)) * (0.5 if load_in_4bit else dtype.itemsize)
    free, _ = device_memory(device)
    # Otherwise the system would kill the process without a message.
    if size > free:
        raise UserError(
            f"the weights of {source} take {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of "
            f"memory are free on {device}",
            "use a smaller model, or a machine with more memory",
        )
    # Fails before the weights are read, which takes minutes for a large model.
    if attention:
        skeleton(source, attention)
    words: dict[str, Any] = {"config": config, "attn_implementation": attention}
    if load_in_4bit:
        check_bitsandbytes()
        words["device_map"] = {"": str(device)}  # quantize tensor by tensor, on the device
        nf4 = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        }
        words["quantization_config"] = BitsAndBytesConfig(**nf4, bnb_4bit_compute_dtype=dtype)
    model = with_weights(AutoModelForCausalLM, source, dtype=dtype, **words)
    for layer in model.modules() if load_in_4bit else ():
        # On CPUs with AVX512-BF16, evaluation would otherwise rewrite the weights with rounded scales.
        layer.support_avx512bf16_for_cpu = False
    model.eval().to(device=device)
    return LoadedModel(model, renderer.tokenizer, renderer, length, source)


def check_bitsandbytes() -> None:
    """Raise ``UserError`` if the package that stores weights in 4 bits is not installed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            "load_in_4bit=true needs the package 'bitsandbytes', which is not installed",
            "pip install 'coterie[qlora]', or use dtype=bfloat16 without load_in_4bit",
        )


def load_renderer(
    name_or_path: str | Path, template_args: Mapping[str, Any] | None = None
) -> tuple[ChatRenderer, int]:
    """Return a model's renderer and context length without loading its weights.

    The renderer of a local folder is shared until a file in the folder or the day changes.
    """
    source = resolve(name_or_path)
    if not Path(source).is_dir():
        return _new_renderer(source, template_args)
    # Tokenizers take seconds to load, and commands ask for the same one several times. Times of
    # modification and sizes stand for the contents of the files.
    with os.scandir(source) as files:
        stats = sorted((file.name, file.stat()) for file in files if file.is_file())
    state = [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]
    return _shared_renderer(source, json.dumps(dict(template_args or {})), today(), *state)


@lru_cache(MOST_RENDERERS)
def _shared_renderer(source: str, template_args: str, *_: object) -> tuple[ChatRenderer, int]:
    return _new_renderer(source, json.loads(template_args))


def _new_renderer(source: str, template_args: Mapping[str, Any] | None) -> tuple[ChatRenderer, int]:
    config = _config(source)
    renderer = ChatRenderer(load_tokenizer(source), _generation_ends(source, config), template_args)
    context = context_length(config)
    assert context is not None  # see _config
    return renderer, context


def checked_skeleton(name_or_path: str | Path) -> Any:
    """Return :func:`skeleton` of a model. Raise ``UserError`` if :func:`load` could not read the model.

    Only the headers of local weights are read, and no weights on the hub.
    """
    source = resolve(name_or_path)
    check_safetensors(source)
    count_weights(Path(source))
    return skeleton(source)


def skeleton(name_or_path: str | Path, attention: str | None = None) -> Any:
    """Build a model without weights (on the ``meta`` device) from its config.

    Raises :class:`UserError` if the model or this machine does not support ``attention``.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = _config(resolve(name_or_path))
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    except (ImportError, ValueError) as error:
        if attention is None:
            raise
        raise UserError(
            f"attention={attention} can't be used with {name_or_path}: {str(error).splitlines()[0]}",
            "use attention=sdpa, or install the missing library",
        ) from error


def device_memory(device: "str | torch.device") -> tuple[int, int]:
    """Return the free and the total bytes of a device. Raise ``UserError`` for a missing GPU."""
    if not str(device).startswith("cuda"):
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)
    import torch

    device = torch.device(device)
    if (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"there is no device {device} on this machine", "use auto or cpu")
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)


def reload(loaded: LoadedModel, path: str | Path) -> None:
    """Replace a model's weights in place with a checkpoint or LoRA adapter at ``path``.

    An adapter is merged into the weights of ``loaded.source``.
    """
    from transformers import AutoModelForCausalLM

    from coterie.models.adapters import load_adapter, merged, untie

    adapter = is_adapter(path)
    source = loaded.source if adapter else resolve(path)
    if not adapter:
        _config(source)
        check_safetensors(source)
    # Loaded aside and copied: after an error the old weights are whole, and others who hold the model see the new ones.
    fresh = with_weights(AutoModelForCausalLM, source, dtype=loaded.model.dtype)
    if adapter:
        fresh = merged(load_adapter(fresh, Path(path)))
    # Different weights can't be copied into tied ones.
    if fresh.get_input_embeddings().weight is not fresh.get_output_embeddings().weight:
        untie(loaded.model)
    weights = fresh.state_dict()
    have = {name: weight.shape for name, weight in loaded.model.state_dict().items()}
    if have != {name: weight.shape for name, weight in weights.items()}:
        raise UserError(
            f"the weights at {path} do not fit the loaded model {loaded.source}",
            "load a checkpoint of the same architecture and vocabulary",
        )
    loaded.model.load_state_dict(weights)


def resolve(name_or_path: str | Path) -> str:
    """Return the folder of a packaged, converted or local checkpoint, or the hub name unchanged."""
    name = str(name_or_path)
    # Before local folders, so that a folder of this name in the working folder changes nothing.
    if ours := packaged_folder(name) or converted_folder(name):
        return str(ours)
    folder = expanded(name)
    if name and folder.is_dir():
        if (folder / "config.json").is_file():
            # Adapters and configs store the path, and are read from other working folders.
            return str(folder.absolute())
        todo = "give a folder that save_pretrained wrote"
        if is_adapter(folder):
            merging = f"coterie export model {folder} --merge --out MERGED"
            todo = f"the folder is a LoRA adapter: run `{merging}` and give MERGED"
        raise UserError(f"{folder} is not a model: it has no config.json", todo)
    # A `Path` never means a name on the hub; with the slash it can't be read as one.
    check_hub_name(f"{folder}/" if isinstance(name_or_path, Path) else name)
    return name


def identity(name_or_path: str | Path) -> str:
    """Return an identity independent of the path: the model's name, or a hash of the files of a local folder."""
    folder = Path(resolve(name_or_path)).resolve()
    name = str(name_or_path)
    if packaged_folder(name) or converted_folder(name) or not folder.is_dir():
        return name
    patterns = ("*.safetensors", "config.json", *TOKENIZER_FILES)
    # Everything that determines the model's log-probs and prompts, and nothing else in the folder.
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        digest.update(f"{file.name} {_checksum(file, stat.st_mtime_ns, stat.st_size)}\n".encode())
    return digest.hexdigest()


@cache
def _checksum(file: Path, modified: int, size: int) -> str:
    """Hash a file, once for each modification time and size."""
    return sha256(file)


def check_context(context_length: int, length: int, name: str = "the model") -> None:
    """Raise ``UserError`` if sequences of ``length`` tokens exceed the context length."""
    if length > context_length:
        raise UserError(
            f"sequences of up to {length} tokens are needed, but {name} takes {context_length}",
            "lower max_tokens or the number of turns, or use a model with a longer context",
        )


def context_length(config: Any) -> int | None:
    """Return the maximum number of tokens in a sequence; ``None`` if the config has no limit.

    Models with ``longrope`` are limited to their original context: above it the angles of all tokens of a batch change
    with its longest row.
    """
    text = config.get_text_config()
    max_positions: int | None = getattr(text, "max_position_embeddings", None)
    # One set of parameters, or one for each type of layer.
    angles = getattr(text, "rope_parameters", None) or {}
    kinds = [angles] if "rope_type" in angles else [angle for angle in angles.values() if angle]
    long = [angle for angle in kinds if angle["rope_type"] == "longrope"]
    lengths = [max_positions, *(angle["original_max_position_embeddings"] for angle in long)]
    return min((length for length in lengths if length is not None and length > 0), default=None)


def is_adapter(folder: Path | str) -> bool:
    """Return True if a folder is a LoRA adapter, not a full model."""
    return (Path(folder) / ADAPTER_FILE).is_file()


def _config(source: str) -> "PreTrainedConfig":
    """Return the model's config. Raise ``UserError`` unless it is a causal language model that we can run."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig

    config = read_part(AutoConfig, source, "its config.json")
    # Reward models and classifiers have the config of a causal model; their architecture differs.
    names = config.architectures or []
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or any(
        not name.endswith(CAUSAL) for name in names
    ):
        raise UserError(
            f"{source} is not a causal language model ({', '.join(names) or config.model_type})",
            "give a model whose architecture ends in ForCausalLM",
        )
    if context_length(config) is None:
        raise UserError(
            f"the config.json of {source} ({config.model_type}) has no max_position_embeddings",
            "add max_position_embeddings to it",
        )
    assert isinstance(config, PreTrainedConfig)
    return config


def load_tokenizer(source: str) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a folder or hub name. Raise ``UserError`` if it can't be read."""
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    tokenizer = read_part(AutoTokenizer, source, "its tokenizer")
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def _generation_ends(source: str, config: "PreTrainedConfig") -> list[int]:
    """Return the ends of turn of the generation settings, or of the config of a folder without such settings."""
    from transformers import GenerationConfig

    folder, ends = Path(source), getattr(config, "eos_token_id", None)
    # The generation config has all ends of turn, the model's config often one of them.
    if not folder.is_dir() or (folder / "generation_config.json").is_file():
        ends = read_part(GenerationConfig, source, "its generation_config.json").eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def read_part(kind: Any, source: str, what: str) -> Any:
    """Read a part of a model; code of a repository is not run (without ``False``, Transformers prompts to run it)."""
    words = {} if kind.__name__ == "GenerationConfig" else {"trust_remote_code": False}
    try:
        return kind.from_pretrained(source, local_files_only=local_only(source), **words)
    except BROKEN as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{what} of {source} needs custom code, which is not run",
                "use a model of an architecture that Transformers has",
            ) from error
        if Path(source).is_dir():
            raise UserError(
                f"{source}: {what} can't be read: {reason}", "save or download it again"
            ) from error
        if not hub_answers():
            raise not_here(source, what) from error
        raise UserError(
            f"{source!r} is not a packaged model or a folder, and {what} can't be read from the "
            f"Hugging Face hub: {reason}",
            "check the spelling, or give the folder of a downloaded model",
        ) from error


def check_safetensors(source: str) -> None:
    """Raise ``UserError`` for a folder without safetensors weights."""
    folder = Path(source)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{source} has no weights in safetensors format (pickled weights are not read: they "
            "can run code)",
            "save the model again with model.save_pretrained(folder)",
        )


# -- weights --------------------------------------------------------------------------------------


def with_weights(kind: Any, source: str | Path, *, unused: str = "", **words: Any) -> Any:
    """Load a Transformers model from safetensors weights, of which those that begin with ``unused`` may be missing.

    Raises ``UserError`` if others are missing (Transformers would initialize them randomly), can't be read or don't
    fit.
    """
    try:
        model, report = kind.from_pretrained(
            source,
            use_safetensors=True,
            output_loading_info=True,
            local_files_only=local_only(str(source)),
            trust_remote_code=False,
            **words,
        )
    except RuntimeError as error:
        # Transformers proposes this argument in its error for tensors of another shape.
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise UserError(
            f"the weights of {source} do not fit its config.json",
            "give a folder whose files belong to one model",
        ) from error
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and not Path(source).is_dir() and not hub_answers():
            raise not_here(str(source), "its weights") from error
        reason = str(error).splitlines()[0]
        raise UserError(f"the weights of {source} can't be read: {reason}", COPY) from error
    missing = report["missing_keys"]
    check_whole(source, [name for name in missing if not unused or not name.startswith(unused)])
    return model


def check_whole(source: str | Path, missing: Collection[str]) -> None:
    """Raise ``UserError`` if tensors are missing from saved weights."""
    if missing:
        problem = f"tensors are missing from {source}: {len(missing)}, such as {min(missing)}"
        raise UserError(problem, COPY)


@contextmanager
def reading(path: Path, todo: str = COPY) -> Iterator[None]:
    """Convert the errors from reading a damaged file or folder into ``UserError``."""
    try:
        yield
    except DAMAGE as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        if isinstance(error, ValidationError):
            detail = error.errors()[0]
            name = ".".join(map(str, detail["loc"]))
            reason = f"{name}: {detail['msg']}"
            reason = f"it has no {name!r}" if detail["type"] == "missing" else reason
        raise UserError(f"{path} is cut off or damaged: {reason}", todo) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of safetensors for a full or failing disk into ``OSError``."""
    try:
        yield
    except SafetensorError as error:
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error


# -- the hub --------------------------------------------------------------------------------------


def local_only(source: str) -> bool:
    """Return True if a model must be read locally: it is a folder, or the hub is unreachable."""
    return Path(source).is_dir() or not hub_answers()


@cache
def hub_answers() -> bool:
    """Return True if the hub (or the mirror in ``HF_ENDPOINT``) is reachable. Checked once per process.

    Without a network, the hub's own client retries each file of a model six times, which takes minutes.
    """
    for _ in range(0 if constants.HF_HUB_OFFLINE else TRIES):
        try:
            get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
        except Exception:  # errors depend on the version of huggingface_hub
            continue
        return True
    return False


def not_here(source: str, what: str) -> UserError:
    """Return the error for a model with a missing file while the hub is unreachable."""
    unreachable = f"{constants.ENDPOINT} can't be reached"
    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else unreachable
    return UserError(
        f"{source!r} is not a packaged model or a folder, {what} was not downloaded earlier, and {reason}",
        "check the spelling and the network; to work offline, download the model on another machine "
        f"(hf download {source} --local-dir FOLDER), copy the folder, and give it as the model",
    )
