"""Save a model as a folder for other programs: weights, config, tokenizer, and the ends of turn that were trained.

Transformers and vLLM read ends of turn from ``generation_config.json``, vLLM's grammars and llama.cpp from the
tokenizer, others from ``config.json``. A base model names only the end of its documents there.
"""

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import TOKENIZER_FILES, load_renderer


def save_model(model: Any, folder: Path, weights: Mapping[str, Any] | None = None) -> None:
    """Write the config, the weights (or ``weights``, if ranks shard them), and the files of :func:`save_tokenizer`."""
    from transformers import GenerationConfig

    settings = model.generation_config
    # Transformers loads some published settings that it refuses to save, such as a temperature without do_sample.
    model.generation_config = GenerationConfig()
    try:
        model.save_pretrained(folder, state_dict=weights)
    finally:
        model.generation_config = settings
    save_tokenizer(model, folder)


def copy_files(source: Path, folder: Path, patterns: Sequence[str]) -> None:
    """Copy the files of a model's folder that match one of the patterns."""
    for file in sorted({file for pattern in patterns for file in source.glob(pattern)}):
        shutil.copyfile(file, folder / file.name)


def save_tokenizer(model: Any, folder: Path) -> None:
    """Write the tokenizer and the generation settings of ``model``, with the ends at which coterie ends its turns.

    Copies the tokenizer's files, but for its end. A model that was made in memory has no such files and keeps its ends.
    """
    from transformers.utils import cached_file

    settings, config = copy.copy(model.generation_config), None
    with suppress(OSError):  # neither a folder nor in the cache of the hub
        config = cached_file(model.config.name_or_path, "config.json", local_files_only=True)
    if config is not None:
        source = Path(config).parent
        copy_files(source, folder, TOKENIZER_FILES)
        with suppress(UserError):  # without a chat template, there are no turns to end
            ends = _write_ends(model, load_renderer(source)[0], folder)
            settings.eos_token_id = ends or settings.eos_token_id
    # Written last, because the copied files have the settings of the source.
    text = settings.to_json_string(ignore_metadata=True)
    (folder / "generation_config.json").write_text(text, encoding="utf-8")


def _write_ends(model: Any, renderer: ChatRenderer, folder: Path) -> list[int]:
    """Write the ends of turn into the files of a tokenizer and a config. Return them, those that are trained first."""
    tokenizer, trained = renderer.tokenizer, (*renderer.end[-1:], *sorted(renderer.tools.ends))
    if not trained:
        return []
    ends = list(dict.fromkeys([*trained, *sorted(renderer.end_ids)]))
    has_list = isinstance(model.config.eos_token_id, list)  # the configs of some models take none
    changes: dict[str, Any] = {"config.json": {"eos_token_id": ends if has_list else ends[0]}}
    # A template that writes the tokenizer's end (Phi 3's, after a chat) would write another text.
    if tokenizer.eos_token_id not in trained and "eos_token" not in renderer.template.source:
        tokens = {"eos_token": tokenizer.convert_ids_to_tokens(ends[0])}
        if tokenizer.pad_token is None:
            # Otherwise programs would pad by the new end, and mask it when they train.
            tokens["pad_token"] = tokenizer.eos_token
        changes |= dict.fromkeys(("tokenizer_config.json", "special_tokens_map.json"), tokens)
    for name, values in changes.items():
        if (file := folder / name).is_file():  # there is no config.json beside an adapter
            values = {**json.loads(file.read_bytes()), **values}
            file.write_text(json.dumps(values, indent=2, ensure_ascii=False), encoding="utf-8")
    return ends
