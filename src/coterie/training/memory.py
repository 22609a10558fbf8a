"""Estimate of the memory that training and sampling need on one device, from a model's shape and the settings.

Activations are modeled on Llama, Qwen, Mistral and SmolLM in Transformers with fused attention (``sdpa``, flash) or
``eager``; other architectures are estimated in the same way.

Factors are bytes for each element of the tensors that are alive at the peak. To change one, measure:
``tests/training/test_memory.py`` compares the estimate with the live tensors of real steps, ``bench/gpu_memory.py``
with a GPU.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.training.settings import Reads, TrainingSettings

LIBRARIES = 2**29
"""Bytes of a process without a model: PyTorch and Transformers (0.44 GiB measured on a CPU), or a CUDA context."""
MOMENTS = 8
"""Bytes of AdamW's two float32 moments of a weight."""
UPDATE = 19
"""Bytes of temporary values for each element of a bucket of bfloat16 weights during its update, which peaks in
:func:`coterie.training.trainer.rounded`: the float32 weights, random and rounded bits in int32, and a float32 tensor
and three bool tensors of ``isfinite``."""
LOGITS: Mapping[Reads, int] = {"logprobs": 12, "entropies_no_grad": 16, "entropies": 20}
"""Bytes of float32 tensors for each element of a chunk of logits; a value head has no logits. ``logprobs``: log-probs,
and the zeros and the result of the backward pass of ``gather``. ``entropies_no_grad``: log-probs, probabilities,
clamped log-probs, and the product of the last two. ``entropies``: these and a gradient."""
GATHERED = 2
"""Layers that FSDP2 gathers at once: the current and the next one."""
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits: each block of 64 has a scale of 8 bits, and 256 of these have a float32 scale."""
UPPER_BOUNDS = ("activations", "logits", "keys and values", "stored prompts")
"""Terms that depend on the length and number of rows and dialogues; all others are certain."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model that determine its memory."""

    weights: int
    largest: int
    """Elements of the largest weight, mostly of an embedding."""
    layer: int
    """Number of weights of one layer."""
    linear: Mapping[str, tuple[int, int]]
    """Linear layers by name, without the output layer: weights, and inputs plus outputs, summed over all layers."""
    output: int
    """Number of weights of the output layer."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    context: int
    normalized_heads: bool
    """True if queries and keys are normalized (Qwen 3)."""
    compiled: bool
    """True if the compiled loops of the embedded engine take this architecture on a CPU."""
    in_4bit: bool = False
    """True if the linear layers but the output layer are stored in 4 bits."""

    @classmethod
    def of(cls, model: Any, *, load_in_4bit: bool = False) -> "ModelShape":
        """Return the shape of a causal language model, which may be on the ``meta`` device."""
        from torch import nn  # torch takes seconds to import

        text = model.config.get_text_config()
        output = model.get_output_embeddings()
        linear: dict[str, tuple[int, int]] = {}
        for name, module in model.named_modules():
            weight = getattr(module, "weight", None)
            if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding):
                continue
            if module is not output:
                # One entry for a name in all layers (`q_proj`), since LoRA targets are such names.
                # An adapter of rank r has r * (inputs + outputs) weights on each layer.
                weights, widths = linear.get(key := name.rpartition(".")[2], (0, 0))
                linear[key] = (weights + weight.numel(), widths + sum(weight.shape))
        sizes = [weight.numel() for weight in model.parameters()]
        heads, layers = getattr(text, "num_attention_heads", 1), text.num_hidden_layers
        # Heads may be wider than their share of the hidden size (Qwen 3).
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        inner = max(inner) if isinstance(inner, list) else inner  # of each layer (Gemma 3n)
        # In a mixture of experts, a token has the activations of its chosen experts only.
        if experts := getattr(text, "num_experts_per_tok", None):
            inner = experts * (getattr(text, "moe_intermediate_size", None) or inner)
        # By identity, so that tied embeddings count once.
        embeddings = {
            id(module.weight): module.weight.numel()
            for module in (model.get_input_embeddings(), output)
        }
        return cls(
            weights=sum(sizes),
            largest=max(sizes),
            layer=(sum(sizes) - sum(embeddings.values())) // layers,
            linear=linear,
            output=output.weight.numel(),
            layers=layers,
            hidden=text.hidden_size,
            intermediate=inner,
            heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_width=width,
            vocabulary=text.vocab_size,
            context=getattr(text, "max_position_embeddings", 0),
            normalized_heads=any(name.endswith("q_norm") for name, _ in model.named_modules()),
            compiled=model.config.model_type in ("llama", "qwen2") and not load_in_4bit,
            in_4bit=load_in_4bit,
        )

    def weight_memory(self, weight_bytes: int) -> int:
        """Return the bytes of all weights. Weights that are not in 4 bits take ``weight_bytes`` each."""
        # Only linear layers are quantized; embeddings, norms and the output layer keep their dtype.
        quantized = self.in_4bit * sum(weights for weights, _ in self.linear.values())
        return (self.weights - quantized) * weight_bytes + round(quantized * NF4)

    def adapter(self, settings: TrainingSettings) -> int:
        """Return the number of weights of the LoRA adapter that ``settings`` add."""
        return settings.rank * sum(self.linear[name][1] for name in self.targets(settings))

    def targets(self, settings: TrainingSettings) -> set[str]:
        """Return the names of the trained linear layers: all layers, or the layers with an adapter."""
        from coterie.models.adapters import ALL_LINEAR  # torch takes seconds to import

        names = set(settings.lora_targets)
        is_full = settings.method == "full" or ALL_LINEAR in names
        return set(self.linear) if is_full else names & set(self.linear)

    @property
    def cache_token(self) -> int:
        """Elements of the keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_width


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """Model with the settings of its training."""

    shape: ModelShape
    settings: TrainingSettings
    longest: int | None = None
    """Tokens of the longest row; ``None`` for ``settings.max_length`` or the context."""
    rows: int = 1
    """Rows that must be in the same micro-batch, such as the 2 rows of a pair."""
    items: int | None = None
    """Items (rows or pairs) of the training data; ``None`` if unknown."""
    reads: Reads = "logprobs"
    attention: str = "sdpa"
    shares_base: bool = False
    """True if the weights under its adapter are those of an earlier model."""

    @property
    def trained(self) -> int:
        """Number of trained weights."""
        s, shape = self.settings, self.shape
        return shape.adapter(s) if s.method == "lora" else shape.weights

    @property
    def weight_bytes(self) -> int:
        return 2 if self.settings.dtype == "bfloat16" else 4

    @property
    def trained_bytes(self) -> int:
        """Bytes of one trained weight and of its gradient. Adapters are float32."""
        return 4 if self.settings.method == "lora" else self.weight_bytes

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        limit = min(self.settings.max_length, self.shape.context or self.settings.max_length)
        return min(limit, self.longest or limit)

    @property
    def tokens(self) -> int:
        """Tokens of the largest micro-batch, with padding."""
        item, tokens = self.rows * self.length, self.settings.tokens_per_microbatch
        if self.items is not None:  # a micro-batch holds no more than all items of a step
            tokens = min(tokens, item * min(self.items, self.settings.batch_size))
        # An item that exceeds the budget has a micro-batch of its own, and is never truncated.
        return max(tokens, item)

    def resident(self) -> dict[str, int]:
        """Return the bytes that stay allocated between steps."""
        weights = {"weights": self.shape.weight_memory(self.weight_bytes) * (not self.shares_base)}
        adapter = {"adapter": self.trained * 4} if self.settings.method == "lora" else {}
        return {**weights, **adapter, "optimizer state": self.trained * MOMENTS}

    def step(self, *, on_gpu: bool, shards: int = 1) -> dict[str, int]:
        """Return the bytes of a step at its peak: in the backward pass or in the update of bfloat16 weights.

        The update works on one of ``shards`` slices of the weights.
        """
        from coterie.models.logprobs import (
            CHUNK_ELEMENTS,
            GPU_CHUNKS,
        )  # torch takes seconds to import
        from coterie.training.trainer import BUCKET

        shape, mixed = self.shape, self.settings.autocast(on_gpu=on_gpu)
        # Bytes of an activation in matrix products.
        compute = 2 if mixed or self.weight_bytes == 2 else 4
        gradients = {"gradients": self.trained * self.trained_bytes}
        # Bytes per token that a layer keeps, and that is kept outside of the layers, by embeddings and
        # the final norm: four float32 values for each hidden unit.
        layer, outside = self._layer(mixed=mixed, on_gpu=on_gpu), 16 * shape.hidden
        # Temporary gradients of one layer in its backward pass, per token: two of the MLP's inner
        # width in the compute dtype, and two of the hidden size in float32.
        backward = 2 * shape.intermediate * compute + 8 * shape.hidden
        # The vocabulary is projected in chunks (`models.logprobs`), so the memory of the logits
        # does not grow with the micro-batch.
        elements = CHUNK_ELEMENTS * (GPU_CHUNKS if on_gpu else 1)
        chunk = min(self.tokens, max(1, elements // shape.vocabulary)) * shape.vocabulary
        logits = LOGITS.get(self.reads, 0) * chunk
        if logits and self.settings.method == "full":
            logits += 2 * shape.output * compute  # gradients of the output layer from two chunks
        if self.settings.gradient_checkpointing:
            # With checkpointing every layer keeps its input only, and one layer at a time is
            # recomputed.
            residual = self.weight_bytes if self.settings.method == "full" else compute
            per_token = shape.layers * residual * shape.hidden + outside
            temporary = max(logits, self.tokens * (layer + backward))
        else:
            per_token = shape.layers * layer + outside
            temporary = max(logits, self.tokens * backward)
        passes = {"activations": self.tokens * per_token, "logits": logits}
        # Logits are freed before the backward pass reaches the layers: the peak is one or the
        # other.
        if temporary > logits:
            passes = {"activations": self.tokens * per_token + temporary}
        if mixed:
            # Autocast computes with bfloat16 copies of float32 weights, and keeps them for the
            # backward pass.
            copies = 0 if shape.in_4bit else sum(weights for weights, _ in shape.linear.values())
            copies += shape.output
            passes["bfloat16 copies of weights"] = 2 * copies * (self.weight_bytes == 4)
        if shape.in_4bit:  # a layer is converted for its own products only
            widest = max(weights for weights, _ in shape.linear.values()) // shape.layers
            passes["weights of a layer"] = widest * self.weight_bytes
        update = {}
        if self.trained_bytes == 2:
            # The optimizer updates bfloat16 weights in float32 copies, one bucket at a time. A
            # bucket has at least one whole weight.
            size = max(shape.largest, min(shards * BUCKET, shape.weights)) // shards
            update = {"update": UPDATE * size}
        # Activations are freed before the update starts, so only the larger of the two counts.
        return gradients | max(passes, update, key=lambda term: sum(term.values()))

    def _layer(self, *, mixed: bool, on_gpu: bool) -> int:
        """Return the bytes per token that one layer keeps for its backward pass."""
        s, shape = self.settings, self.shape
        # Sizes are in bytes per token. `full` is also used as the number 1 for terms of full
        # training.
        full, targets = s.method == "full", shape.targets(s)
        compute = 2 if mixed or self.weight_bytes == 2 else 4
        residual = 2 if self.weight_bytes == 2 else 4
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width

        def inputs(width: int, names: Sequence[str], *, in_dtype: bool = False) -> int:
            """Return the bytes that linear layers keep of a common input, which may be ``in_dtype`` of ``compute``."""
            count = len(targets.intersection(names)) or full
            # Under autocast each layer keeps a bfloat16 copy of the input; else all share one
            # tensor.
            if full:
                return compute * width * (0 if in_dtype else count if mixed else 1)
            if compute == 4:
                return 0 if in_dtype else 4 * width * bool(count)
            return (2 if mixed else 4) * width * count  # an adapter casts its input itself

        # Two norms compute in float32. Trained norms also keep the normalized states for their
        # gradient.
        norms = 2 * (4 + residual * full) * shape.hidden
        norms += inputs(shape.hidden, ("q_proj", "k_proj", "v_proj"))
        norms += inputs(shape.hidden, ("gate_proj", "up_proj"))
        # Queries, keys, values and the output of fused attention, and a float32 log-sum of each
        # head.
        attention = 2 * compute * (queries + keys) + 4 * shape.heads
        attention += inputs(queries, ("o_proj",), in_dtype=True)
        if shape.normalized_heads:
            attention += (4 + compute * full) * (queries + keys)
        # SDPA on GPUs has no kernel for float32 with fewer key heads than query heads that does not keep the scores.
        if self.attention == "eager" or (on_gpu and compute == 4 and shape.kv_heads < shape.heads):
            # Per head and earlier token: the softmax in float32, and its copy in the compute dtype.
            attention += shape.heads * self.length * (4 if compute == 4 else 6)
            # Keys and values are repeated for all query heads.
            attention += 2 * compute * (queries - keys)
        # Outputs of the gate and up projections and the gate's activation, and their product if the
        # down projection is trained.
        product = full or (compute == 4 and "down_proj" in targets)
        mlp = (3 + product) * compute * shape.intermediate
        mlp += inputs(shape.intermediate, ("down_proj",), in_dtype=True)
        return norms + attention + mlp


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one device at the peak of a stage, by purpose."""

    stage: str
    terms: Mapping[str, int]
    advice: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.terms.values())

    @property
    def certain(self) -> int:
        """Bytes that do not depend on the length of rows and dialogues."""
        return sum(size for name, size in self.terms.items() if name not in UPPER_BOUNDS)

    def line(self, available: int, device: str) -> tuple[str, str]:
        """Return a line with the total, the memory of the device, the terms, and advice if it does not fit."""
        terms = ", ".join(f"{name} {size}" for name, size in self._terms() if size != "0.00")
        text = f"up to {in_gib(self.total)} of {in_gib(available)} GiB on {device}: {terms}"
        if self.total > available:
            text += f". It may not fit; use {', '.join(self.advice)}, or a smaller model"
        return f"memory of {self.stage}", text

    def check(self, available: int, device: str, model: str) -> None:
        """Raise ``UserError`` if the certain terms exceed the memory of the device."""
        # Upper bounds of activations are often far off for short rows, so they only cause advice.
        if self.certain > available:
            terms = ", ".join(f"{name} {size}" for name, size in self._terms()[:5])
            raise UserError(
                f"{self.stage} of {model} needs {in_gib(self.total)} GiB on {device}, which has "
                f"{in_gib(available)} GiB ({terms})",
                f"use {', '.join(self.advice)}, or a smaller model",
            )

    def _terms(self) -> list[tuple[str, str]]:
        by_size = sorted(self.terms.items(), key=lambda item: -item[1])
        return [(name, in_gib(size)) for name, size in by_size]


def in_gib(size: int) -> str:
    return f"{size / 2**30:.{1 if size >= 2**30 else 2}f}"


def advice(key: str, shared: str, settings: TrainingSettings, *, ranks: bool) -> tuple[str, ...]:
    """Return settings that lower the memory of a training. ``ranks`` is True if it may have several ranks.

    ``key`` is the group of its settings, ``shared`` the group of those that trainings share.
    """
    values = {
        f"{shared}.method=lora": settings.method == "full",
        f"{shared}.dtype=bfloat16": settings.dtype == "float32",
        f"{shared}.gradient_checkpointing=true": not settings.gradient_checkpointing,
        f"{key}.tokens_per_microbatch={settings.max_length}": (
            settings.tokens_per_microbatch > settings.max_length
        ),
        f"{shared}.launch=configs/accelerate/fsdp2.yaml": ranks and settings.launch is None,
    }
    return tuple(value for value, helps in values.items() if helps)


def training_memory(
    key: str,
    models: Sequence[TrainedModel],
    *,
    shared: str = "",
    device: str,
    ranks: int = 1,
    sharded: bool = False,
    references: int = 0,
    sampling: Mapping[str, int] | None = None,
) -> MemoryPlan:
    """Plan the memory of a training on one device; ``key`` and ``shared`` are the groups of its settings.

    ``models`` train in turn, and each keeps its weights and moments; the first is the policy. Ranks have a GPU each, or
    share the memory of a CPU. ``references`` is the number of frozen copies of the policy, ``sampling`` the bytes of an
    engine that samples between steps, without the weights, which it shares.
    """
    terms = Counter({"libraries": LIBRARIES})
    for model in models:
        terms.update(model.resident())
    policy = models[0]
    if references:
        terms["reference model"] = references * policy.shape.weights * policy.weight_bytes
    shards = ranks if sharded else 1
    # The models take their steps one after another: all keep their states, and the largest step
    # counts.
    steps = [model.step(on_gpu=device != "cpu", shards=shards) for model in models]
    step = max(steps, key=lambda term: sum(term.values()))
    terms.update(step)
    # Data parallel ranks copy gradients into the buckets that they exchange.
    if ranks > 1 and not sharded:
        terms["gradients that ranks exchange"] = terms["gradients"]
    if sharded:
        shape = policy.shape
        # Gathered weights: a few layers, and the weights outside of layers, such as embeddings.
        layers = GATHERED * shape.layer + shape.weights - shape.layers * shape.layer
        for name in ("weights", "adapter", "optimizer state", "gradients", "reference model"):
            # Everything that stays allocated is divided among the ranks (rounded up).
            terms[name] = -(-terms[name] // ranks)
        compute = 2 if terms.pop("bfloat16 copies of weights", 0) else policy.weight_bytes
        terms["gathered layers"] = layers * compute
        if policy.settings.method == "full":
            terms["gradients of gathered layers"] = layers * compute
    if device == "cpu" and ranks > 1:
        # Ranks on a CPU share one memory, also with the process that starts them and holds the
        # model.
        terms = Counter({name: size * ranks for name, size in terms.items()})
        terms["model of the process that starts the ranks"] = policy.resident()["weights"]
        terms["libraries"] += LIBRARIES
    terms.update(sampling or {})
    sizes = {name: size for name, size in terms.items() if size}
    hints = advice(key, shared or key, policy.settings, ranks=sampling is None)
    return MemoryPlan(key, sizes, hints)


def cache_memory(
    shape: ModelShape, engine: EngineSettings, dtype_bytes: int, dialogues: int, length: int
) -> dict[str, int]:
    """Return the bytes that the embedded engine takes beside the weights, for dialogues of at most ``length`` tokens.

    ``engine.max_batch`` of the dialogues run at once.
    """
    on_cpu = engine.device_name == "cpu"
    rows, token = min(engine.max_batch, dialogues), shape.cache_token * dtype_bytes
    stored = min(round(engine.cache_gib * 2**30), dialogues * length * token)
    # The compiled loops copy the weights into their own layout, and allocate only rows in use.
    if on_cpu and dtype_bytes == 4 and shape.compiled:
        return {
            "packed copy of weights": shape.weights * 4,
            "keys and values": rows * length * token,
            "stored prompts": stored,
        }
    # Only this loop needs the module, whose torch takes seconds to import.
    from coterie.engines.padded import ROWS, stepped

    # The engine multiplies its slots by four whenever they are too few (`engines.padded.Slots`).
    slots = ROWS
    while slots < rows:
        slots *= 4
    # Zeros in float32 on a CPU cost nothing until they are used.
    used = rows if on_cpu and dtype_bytes == 4 else slots
    return {"keys and values": used * stepped(length) * token, "stored prompts": stored}
