"""Compiled loops (numba) of a Llama-shaped model's steps on CPU in float32; :mod:`coterie.engines.llama` calls them.

The order of each sum depends only on the sequence itself, so results are bitwise the same in any batch and with any
number of threads. Weights are packed in panels of ``PANEL`` outputs, ``[panels, inputs, PANEL]``, which :func:`product`
reads sequentially. All kernels are in one file, because numba's cache of a function depends only on its own file.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from coterie.engines.sequence import BLOCK


def drop_stale(source: Path, cache: str | None) -> None:
    """Remove the indexes of the file ``source`` in the folder ``cache`` (if any) that are older than the file."""
    # Numba reads an index before it checks if it is stale, and fails if a class in it was renamed.
    if cache is None:
        return
    changed = source.stat().st_mtime
    for index in Path(cache).glob(f"{source.stem}.*.nbi"):
        with suppress(OSError):  # removed by another process, or read-only
            if index.stat().st_mtime < changed:
                index.unlink()


_WIDE = llvmlite.binding.get_host_cpu_features().get("avx512f", False)
LANES = 16 if _WIDE else 8
"""Floats in a vector of a product."""
PANEL = 2 * LANES
TILE = 8 if _WIDE else 4
"""Rows of a tile, whose sums (two vectors each) fit into registers."""
SPAN = 8
"""Floats in a vector of one query's attention; a head's width has to be a multiple of it."""
SCORES = 1 << 16
"""Number of attention scores that fit into the cache."""
CHUNK = 32
"""Tokens that a thread runs through a layer together, so that their data fit into its cache."""

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(64)
_FUSE = ("contract",)
_FUSED, _ANY_ORDER = {"contract"}, {"contract", "reassoc"}
"""Fast-math flags: fused multiply-add; and partial sums within one row."""
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)


class PackedWeights(NamedTuple):
    """Packed weights of a model with ``L`` layers; a missing bias is 0."""

    embedding: np.ndarray  # [vocabulary, width]
    before: np.ndarray  # [L, width], the norm before attention
    qkv: np.ndarray  # [L, panels, width, PANEL]
    qkv_bias: np.ndarray  # [L, outputs]
    out: np.ndarray  # [L, panels, heads * head width, PANEL]
    out_bias: np.ndarray  # [L, width]
    between: np.ndarray  # [L, width], the norm before the MLP
    gate_up: np.ndarray  # [L, panels, width, PANEL]
    gate_up_bias: np.ndarray  # [L, outputs]
    down: np.ndarray  # [L, panels, MLP width, PANEL]
    down_bias: np.ndarray  # [L, width]
    norm: np.ndarray  # [width]
    head: np.ndarray  # [panels, width, PANEL]
    cos: np.ndarray  # [positions, head width / 2]
    sin: np.ndarray  # [positions, head width / 2]
    epsilon: np.float32
    scaling: np.float32


class Tokens(NamedTuple):
    """``N`` new tokens; tokens of one row are adjacent and in order."""

    ids: np.ndarray  # [N]
    rows: np.ndarray  # [N], row of each token
    places: np.ndarray  # [N], position in the row
    common: np.ndarray  # [N], number of blocks shared with the row of the previous token
    pages: np.ndarray  # [rows, blocks], page of each block
    keys: np.ndarray  # [pages, L, key heads, head width, BLOCK]
    values: np.ndarray  # [pages, L, key heads, BLOCK, head width]
    hidden: np.ndarray  # [N, width]
    joined: np.ndarray  # [N, panels * PANEL]: queries, keys and values of a layer


def _pointer(context: Any, builder: Any, kind: Any, array: Any, start: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [start])


def _vector(builder: Any, pointer: Any, index: Any, lanes: int) -> Any:
    pointer_type = ir.VectorType(_FLOAT, lanes).as_pointer()
    return builder.bitcast(builder.gep(pointer, [index]), pointer_type)


def _pick(builder: Any, vector: Any, lanes: list[int]) -> Any:
    which = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), which)


def _count_loop(builder: Any, depth: Any, initial: list[Any], body: Any) -> list[Any]:
    """Build a loop over k from 0 to ``depth``, at least once.

    ``body(k, sums)`` returns the next sums, which are ``initial`` initially.
    """
    entry, loop, end = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    k, sums = builder.phi(_INDEX), [builder.phi(value.type) for value in initial]
    next_values = [*body(k, sums), builder.add(k, _INDEX(1))]
    for phi, start_value, following in zip(
        [*sums, k], [*initial, _INDEX(0)], next_values, strict=True
    ):
        phi.add_incoming(start_value, entry)
        phi.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", next_values[-1], depth), loop, end)
    builder.position_at_end(end)
    return next_values[:-1]


def _tile(rows: int, vectors: int, lanes: int, *, accumulate: bool = False) -> Any:
    """Build ``y[r, :] = sum over k of x[r, k] * w[k, :]`` of ``rows`` rows and ``vectors * lanes`` columns.

    Sums stay in registers and run in the order of ``k``. With ``accumulate`` they start from ``y``. Arguments of the
    built
    function are array, start index and row stride of x, w and y each (for w the stride of ``k``), then the number of
    ``k``, at least one.
    """
    zero = ir.Constant(ir.VectorType(_FLOAT, lanes), [0.0] * lanes)

    @intrinsic
    def tile(
        _: Any, x: Any, x0: Any, dx: Any, w: Any, w0: Any, dw: Any, y: Any, y0: Any, dy: Any, depth: Any
    ) -> Any:  # fmt: skip
        index = types.intp
        signature = types.void(x, index, index, w, index, index, y, index, index, index)

        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            x, w, y = (_pointer(context, b, sig.args[i], *args[i : i + 2]) for i in (0, 3, 6))
            starts = [b.gep(x, [b.mul(args[2], _INDEX(r))]) for r in range(rows)]

            def body(k: Any, sums: list[Any]) -> list[Any]:
                address_ = b.gep(w, [b.mul(k, args[5])])
                columns = [_vector(b, address_, _INDEX(v * lanes), lanes) for v in range(vectors)]
                weights = [b.load(column, align=4) for column in columns]
                updated = []
                for r, start in enumerate(starts):
                    element = b.load(b.gep(start, [k]))
                    all_ = _pick(b, b.insert_element(zero, element, _INDEX(0)), [0] * lanes)
                    for v, weight in enumerate(weights):
                        part = b.fmul(all_, weight, flags=_FUSE)
                        updated.append(b.fadd(sums[r * vectors + v], part, flags=_FUSE))
                return updated

            lines = [b.gep(y, [b.mul(args[8], _INDEX(r))]) for r in range(rows)]
            to = [
                _vector(b, line, _INDEX(v * lanes), lanes) for line in lines for v in range(vectors)
            ]
            begin = [b.load(column, align=4) if accumulate else zero for column in to]
            for total, column in zip(_count_loop(b, args[9], begin, body), to, strict=True):
                b.store(total, column, align=4)
            return context.get_dummy_value()

        return signature, generate

    return tile


def _fetch_code(_: Any, x: Any, index: Any) -> Any:
    """Prefetch the cache line of ``x[index]``, which may be out of bounds."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        address = b.bitcast(_pointer(context, b, sig.args[0], *args), ir.IntType(8).as_pointer())
        flags = [ir.IntType(32)] * 3
        function_type = ir.FunctionType(ir.VoidType(), [address.type, *flags])
        name = "llvm.prefetch.p0"
        fetch = b.module.globals.get(name) or ir.Function(b.module, function_type, name)
        b.call(fetch, [address, *(flag(n) for flag, n in zip(flags, (0, 2, 1), strict=True))])
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


def _as_float_code(_: Any, bits: Any) -> Any:
    return types.float32(types.int32), lambda _, b, __, args: b.bitcast(args[0], _FLOAT)


_many, _two, _single = (_tile(rows, 2, LANES) for rows in (TILE, 2, 1))
_more_many, _more_two, _more_single = (
    _tile(rows, 2, LANES, accumulate=True) for rows in (TILE, 2, 1)
)
_more_narrow = _tile(1, 1, SPAN, accumulate=True)


@njit(cache=True, nogil=True)
def fetch(x: np.ndarray, start: int, count: int) -> None:
    """Prefetch ``count`` floats."""
    for i in range(start, start + count, 16):
        _fetch(x, i)


_fetch: Any = intrinsic(_fetch_code)
_as_float: Any = intrinsic(_as_float_code)
_LOG2E = np.float32(1.44269504)
_LN2 = np.float32(0.693359375), np.float32(-2.12194440e-4)
_POLYNOMIAL = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1, 1)
)  # fmt: skip


@njit(cache=True, nogil=True, fastmath=_FUSED)
def exp(x: np.float32) -> np.float32:
    """Compute e to the x, clamped to -87 ... 88, within some units of the last place; NaN stays NaN.

    The polynomial is from Cephes' ``expf`` (S. Moshier). Unlike a call of the C library it is vectorized.
    """
    clamped = min(max(x, np.float32(-87)), np.float32(88))
    integer_part = np.floor(clamped * _LOG2E + _HALF)
    clamped = clamped - integer_part * _LN2[0] - integer_part * _LN2[1]
    result = _POLYNOMIAL[0]
    for coefficient in _POLYNOMIAL[1:]:
        result = result * clamped + coefficient
    result *= _as_float((np.int32(integer_part) + np.int32(127)) << np.int32(23))
    return result if x == x else x


@njit(cache=True, nogil=True)
def product(
    x: np.ndarray, x0: int, dx: int, rows: int, w: np.ndarray, w0: int, dw: int,
    y: np.ndarray, y0: int, dy: int, depth: int,
) -> None:  # fmt: skip
    """Compute ``PANEL`` columns of ``rows`` rows, with arguments as in :func:`_tile`."""
    row = 0
    while row + TILE <= rows:
        _many(x, x0 + row * dx, dx, w, w0, dw, y, y0 + row * dy, dy, depth)
        row += TILE
    while row + 2 <= rows:
        _two(x, x0 + row * dx, dx, w, w0, dw, y, y0 + row * dy, dy, depth)
        row += 2
    if row < rows:
        _single(x, x0 + row * dx, dx, w, w0, dw, y, y0 + row * dy, dy, depth)


@njit(cache=True, nogil=True)
def multiply(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """Compute ``y = x @ w`` for packed ``w [panels, inputs, PANEL]``."""
    panels, depth, _ = w.shape
    for panel in range(panels):
        weight_start, to = panel * depth * PANEL, panel * PANEL
        product(x, 0, x.shape[1], len(x), w, weight_start, PANEL, y, to, y.shape[1], depth)


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER)
def normalise(x: np.ndarray, weight: np.ndarray, epsilon: np.float32, y: np.ndarray) -> None:
    """Compute ``y = x / rms(x) * weight`` row by row (Zhang and Sennrich 2019, equation 4)."""
    width = len(weight)
    for row in range(len(x)):
        values, to, squares = x[row], y[row], _ZERO
        for i in range(width):
            squares += values[i] * values[i]
        scale = _ONE / np.sqrt(squares / np.float32(width) + epsilon)
        for i in range(width):
            to[i] = values[i] * scale * weight[i]


@njit(cache=True, nogil=True, fastmath=_FUSED)
def rotary(vectors: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> None:
    """Rotate queries and keys ``[heads * head width]`` by the angles of a position (Su et al. 2021)."""
    half = len(cos)
    width = 2 * half
    for start in range(0, len(vectors), width):
        lows, highs = vectors[start : start + half], vectors[start + half : start + width]
        for i in range(half):
            low, high = lows[i], highs[i]
            lows[i] = low * cos[i] - high * sin[i]
            highs[i] = high * cos[i] + low * sin[i]


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER)
def exp_scores(scores: np.ndarray, scaling: np.float32) -> np.float32:
    """Replace scores by ``exp(scaling * (score - largest))``. Return their sum."""
    largest, total = scores[0], _ZERO
    for t in range(len(scores)):
        largest = max(largest, scores[t])
    for t in range(len(scores)):
        scores[t] = exp((scores[t] - largest) * scaling)
        total += scores[t]
    return total


@njit(cache=True, nogil=True)
def weighted_sum(
    x: np.ndarray, x0: int, dx: int, rows: int, w: np.ndarray, w0: int, width: int,
    y: np.ndarray, y0: int, dy: int, depth: int,
) -> None:  # fmt: skip
    """Add to ``y`` the sums of ``depth`` values ``w`` of this width, weighted by each row of ``x``."""
    done = 0
    while done + PANEL <= width:
        weight_start, to, row = w0 + done, y0 + done, 0
        while row + TILE <= rows:
            _more_many(x, x0 + row * dx, dx, w, weight_start, width, y, to + row * dy, dy, depth)
            row += TILE
        while row + 2 <= rows:
            _more_two(x, x0 + row * dx, dx, w, weight_start, width, y, to + row * dy, dy, depth)
            row += 2
        if row < rows:
            _more_single(x, x0 + row * dx, dx, w, weight_start, width, y, to + row * dy, dy, depth)
        done += PANEL
    while done < width:
        weight_start, to = w0 + done, y0 + done
        for row in range(rows):
            _more_narrow(x, x0 + row * dx, dx, w, weight_start, width, y, to + row * dy, dy, depth)
        done += SPAN


@njit(cache=True, nogil=True)
def start_of(pages: np.ndarray, block: int, layer: int, head: int, store: np.ndarray) -> int:
    """Return the start index of a key head's block in ``store`` (keys or values)."""
    _, layers, heads, width, length = store.shape
    return ((pages[block] * layers + layer) * heads + head) * width * length


@njit(cache=True, nogil=True)
def soften(scores: np.ndarray, scaling: np.float32) -> None:
    share = _ONE / exp_scores(scores, scaling)
    for t in range(len(scores)):
        scores[t] *= share


class Span(NamedTuple):
    """Key heads whose scores are computed together, with a line of scores for each query head and row."""

    scores: np.ndarray  # [query heads * rows, places]
    rows: int
    begin: int  # of the key heads
    end: int
    step: int  # query heads of a key head


@njit(cache=True, nogil=True)
def score(
    joined: np.ndarray, row: int, rows: int, keys: np.ndarray, pages: np.ndarray, block: int, ahead: int,
    layer: int, span: Span,
) -> None:  # fmt: skip
    """Compute the scores of ``rows`` rows from ``row`` with one block of keys; prefetch the block ``ahead``."""
    width, dx, reach = keys.shape[3], joined.shape[1], span.scores.shape[1]
    for group in range(span.begin, span.end):
        fetch(keys, start_of(pages, ahead, layer, group, keys), width * BLOCK)
        key_start, first_position = start_of(pages, block, layer, group, keys), group * span.step
        line = (first_position - span.begin * span.step) * span.rows + row
        for part in range(0, BLOCK, PANEL):
            x, to = row * dx + first_position * width, line * reach + block * BLOCK + part
            if rows == 1:  # all query heads of this key head
                arguments = keys, key_start + part, BLOCK, span.scores, to, span.rows * reach, width
                product(joined, x, width, span.step, *arguments)
                continue
            for _ in range(span.step):
                arguments = keys, key_start + part, BLOCK, span.scores, to, reach, width
                product(joined, x, dx, rows, *arguments)
                x, to = x + width, to + span.rows * reach


@njit(cache=True, nogil=True)
def gather(
    mixed: np.ndarray, row: int, rows: int, values: np.ndarray, pages: np.ndarray, block: int, ahead: int,
    layer: int, span: Span, depth: int,
) -> None:  # fmt: skip
    """Add the first ``depth`` values of one block, weighted by the scores, in the layout of :func:`score`."""
    width, dy, reach = values.shape[4], mixed.shape[1], span.scores.shape[1]
    for group in range(span.begin, span.end):
        fetch(values, start_of(pages, ahead, layer, group, values), width * BLOCK)
        value_start = start_of(pages, block, layer, group, values)
        first_position = group * span.step
        line = (first_position - span.begin * span.step) * span.rows + row
        x, to = line * reach + block * BLOCK, row * dy + first_position * width
        if rows == 1:
            arguments = values, value_start, width, mixed, to, width, depth
            weighted_sum(span.scores, x, span.rows * reach, span.step, *arguments)
            continue
        for _ in range(span.step):
            arguments = values, value_start, width, mixed, to, dy, depth
            weighted_sum(span.scores, x, reach, rows, *arguments)
            x, to = x + span.rows * reach, to + width


@njit(cache=True, nogil=True)
def attend(
    joined: np.ndarray, tokens: Tokens, start: int, shared: int, layer: int, scaling: np.float32,
    mixed: np.ndarray,
) -> None:  # fmt: skip
    """Compute causal attention of tokens from ``start``, of one row or of several, which share their first blocks.

    The shared blocks are read once for all tokens. Memory bandwidth is the limit, so all heads process a page together,
    because they are adjacent in memory, or fewer if their scores would not fit into the cache.
    """
    keys, values, count = tokens.keys, tokens.values, len(joined)
    key_heads, width = keys.shape[2:4]
    positions, lines = tokens.places[start : start + count], tokens.rows[start : start + count]
    step, blocks = mixed.shape[1] // width // key_heads, positions // BLOCK + 1
    reach = blocks.max() * BLOCK
    heads = min(max(SCORES // (step * count * reach), 1), key_heads)
    scores = np.empty((heads * step * count, reach), np.float32)
    mixed[:] = _ZERO
    for begin in range(0, key_heads, heads):
        span = Span(scores, count, begin, min(begin + heads, key_heads), step)
        for block in range(shared):
            pages = tokens.pages[lines[0]]
            score(joined, 0, count, keys, pages, block, block + 1, layer, span)
        for row in range(count):
            for block in range(shared, blocks[row]):
                pages, ahead = tokens.pages[lines[row]], min(block + 1, blocks[row] - 1)
                score(joined, row, 1, keys, pages, block, ahead, layer, span)
        for line in range((span.end - begin) * step * count):
            soften(scores[line, : positions[line % count] + 1], scaling)
        for block in range(shared):
            pages = tokens.pages[lines[0]]
            gather(mixed, 0, count, values, pages, block, block + 1, layer, span, BLOCK)
        for row in range(count):
            for block in range(shared, blocks[row]):
                pages, ahead = tokens.pages[lines[row]], min(block + 1, blocks[row] - 1)
                depth = min(BLOCK, positions[row] + 1 - block * BLOCK)
                gather(mixed, row, 1, values, pages, block, ahead, layer, span, depth)


@njit(cache=True, nogil=True, fastmath=_FUSED, error_model="numpy")  # no branch for 1 / 0
def gate(joined: np.ndarray, bias: np.ndarray, y: np.ndarray) -> None:
    """Compute ``y = silu(gate) * up`` of rows with both."""
    width = len(bias) // 2
    gate_bias, up_bias = bias[:width], bias[width:]
    for row in range(len(joined)):
        gates, ups, to = joined[row, :width], joined[row, width:], y[row]
        for i in range(width):
            gated = gates[i] + gate_bias[i]
            to[i] = gated / (_ONE + exp(-gated)) * (ups[i] + up_bias[i])


@njit(cache=True, nogil=True)
def add(x: np.ndarray, update: np.ndarray, bias: np.ndarray) -> None:
    for row in range(len(x)):
        row_values, added = x[row], update[row]
        for i in range(len(bias)):
            row_values[i] += added[i] + bias[i]


@njit(cache=True, nogil=True)
def qkv(weights: PackedWeights, tokens: Tokens, layer: int, start: int, stop: int) -> None:
    """Compute queries, keys and values of tokens from ``start`` to ``stop``; store keys and values in pages."""
    joined, hidden = tokens.joined[start:stop], tokens.hidden[start:stop]
    normed = np.empty_like(hidden)
    normalise(hidden, weights.before[layer], weights.epsilon, normed)
    multiply(normed, weights.qkv[layer], joined)
    bias, turning = weights.qkv_bias[layer], len(weights.qkv_bias[layer])
    keys, values = tokens.keys, tokens.values
    shared, width = keys.shape[2:4]
    for i in range(stop - start):
        row_values, position = joined[i], tokens.places[start + i]
        page, line = tokens.pages[tokens.rows[start + i], position // BLOCK], position % BLOCK
        for j in range(len(bias)):
            row_values[j] += bias[j]
        value_from = turning - shared * width
        rotary(row_values[:value_from], weights.cos[position], weights.sin[position])
        for head in range(shared):
            value = value_from + head * width
            key = value - shared * width
            keys[page, layer, head, :, line] = row_values[key : key + width]
            values[page, layer, head, line] = row_values[value : value + width]


@njit(cache=True, nogil=True)
def attention_group(tokens: Tokens, begin: int, stop: int) -> tuple[int, int]:
    """Return the end of the tokens from ``begin`` that attend together, and their number of shared blocks.

    These are the tokens of one row, or single tokens of rows that share the number of blocks that the first two rows
    share.
    """
    rows, common, end = tokens.rows, tokens.common, begin + 1
    if end == stop or rows[end] == rows[begin]:
        while end < stop and rows[end] == rows[begin]:
            end += 1
        return end, tokens.places[begin] // BLOCK
    shared = common[end]
    while (
        end < stop and 0 < common[end] == shared and (end + 1 == stop or common[end + 1] <= shared)
    ):
        end += 1
    return end, shared if end > begin + 1 else 0


@njit(cache=True, nogil=True)
def compare(pages: np.ndarray, positions: np.ndarray, common: np.ndarray) -> None:
    """Write the number of blocks that each row shares with the previous row into ``common``."""
    common[0] = 0
    for row in range(1, len(positions)):
        max_blocks = min(positions[row], positions[row - 1]) // BLOCK
        block = 0
        while block < max_blocks and pages[row, block] == pages[row - 1, block]:
            block += 1
        common[row] = block


@njit(cache=True, nogil=True)
def attn_mlp(weights: PackedWeights, tokens: Tokens, layer: int, start: int, stop: int) -> None:
    """Compute attention and the MLP of tokens from ``start`` to ``stop``."""
    count, hidden, joined = stop - start, tokens.hidden[start:stop], tokens.joined[start:stop]
    mixed = np.empty((count, weights.out.shape[2]), np.float32)
    begin = 0
    while begin < count:
        end, shared = attention_group(tokens, start + begin, stop)
        end -= start
        arguments = start + begin, shared, layer, weights.scaling
        attend(joined[begin:end], tokens, *arguments, mixed[begin:end])
        begin = end
    back = np.empty((count, weights.out.shape[1] * PANEL), np.float32)
    multiply(mixed, weights.out[layer], back)
    add(hidden, back, weights.out_bias[layer])
    normed = np.empty_like(hidden)
    normalise(hidden, weights.between[layer], weights.epsilon, normed)
    wide = np.empty((count, weights.gate_up.shape[1] * PANEL), np.float32)
    multiply(normed, weights.gate_up[layer], wide)
    gated = np.empty((count, weights.down.shape[2]), np.float32)
    gate(wide, weights.gate_up_bias[layer], gated)
    multiply(gated, weights.down[layer], back)
    add(hidden, back, weights.down_bias[layer])


@njit(cache=True, nogil=True)
def embed(weights: PackedWeights, tokens: Tokens, start: int, stop: int) -> None:
    for i in range(start, stop):
        tokens.hidden[i] = weights.embedding[tokens.ids[i]]


@njit(cache=True, nogil=True)
def vocabulary(weights: PackedWeights, hidden: np.ndarray, logits: np.ndarray) -> None:
    """Compute logits ``[N, panels * PANEL]`` from hidden states; columns past the vocabulary are 0."""
    normed = np.empty_like(hidden)
    normalise(hidden, weights.norm, weights.epsilon, normed)
    multiply(normed, weights.head, logits)


@njit(cache=True, nogil=True)
def likelihoods(
    weights: PackedWeights, hidden: np.ndarray, targets: np.ndarray, size: int, logprobs: np.ndarray
) -> None:
    """Compute the log-probs ``[N]`` of ``targets`` from hidden states, with a vocabulary of ``size``."""
    logits = np.empty((CHUNK, weights.head.shape[0] * PANEL), np.float32)
    for start in range(0, len(targets), CHUNK):
        stop = min(start + CHUNK, len(targets))
        vocabulary(weights, hidden[start:stop], logits[: stop - start])
        for row in range(stop - start):
            row_logits = logits[row, :size]
            target, largest = row_logits[targets[start + row]], row_logits.max()
            logprobs[start + row] = target - largest - np.log(exp_scores(row_logits, _ONE))


@njit(cache=True, nogil=True)
def read(
    weights: PackedWeights, tokens: Tokens, layer: int, share: int, shares: int, chunk: int
) -> None:
    """Finish the previous layer and start ``layer`` (0 to L) for every ``shares``-th chunk from the ``share``-th.

    All shares of a layer have to be complete before the next layer.
    """
    for chunk_start in range(share * chunk, len(tokens.ids), shares * chunk):
        stop = min(chunk_start + chunk, len(tokens.ids))
        if layer:
            attn_mlp(weights, tokens, layer - 1, chunk_start, stop)
        else:
            embed(weights, tokens, chunk_start, stop)
        if layer < len(weights.before):
            qkv(weights, tokens, layer, chunk_start, stop)


@njit(cache=True, nogil=True)
def decode(
    weights: PackedWeights, tokens: Tokens, begin: int, stop: int, logits: np.ndarray
) -> None:
    for start in range(begin, stop, CHUNK):
        end = min(start + CHUNK, stop)
        embed(weights, tokens, start, end)
        for layer in range(len(weights.before)):
            qkv(weights, tokens, layer, start, end)
            attn_mlp(weights, tokens, layer, start, end)
        vocabulary(weights, tokens.hidden[start:end], logits[start:end])


@njit(cache=True, nogil=True)
def nucleus(chances: np.ndarray, top_p: float) -> None:
    """Set all but the smallest set of most likely tokens whose share reaches ``top_p`` to 0."""
    total, mass_before = 0.0, 0.0
    for i in range(len(chances)):
        total += chances[i]
    for i in np.argsort(-chances, kind="mergesort"):
        chance = chances[i]
        if mass_before >= top_p * total:
            chances[i] = _ZERO
        mass_before += chance


@njit(cache=True, nogil=True)
def draw(logits: np.ndarray, settings: np.ndarray, ids: np.ndarray, logprobs: np.ndarray) -> None:
    """Implement :func:`~coterie.engines.inprocess.draw` with output arrays ``ids`` and ``logprobs``."""
    for row in range(len(logits)):
        chances, total, mass = logits[row].copy(), 0.0, 0.0
        temperature, top_p, noise = settings[row]
        greedy = temperature == 0
        if not exp_scores(chances, _ONE if greedy else _ONE / np.float32(temperature)) > 0:
            # A logit is NaN, or the largest is not finite.
            ids[row], logprobs[row] = -1, np.float32(np.nan)
            continue
        if greedy:
            ids[row], logprobs[row] = np.argmax(logits[row]), _ZERO
            continue
        if top_p < 1:
            nucleus(chances, top_p)
        for i in range(len(chances)):
            total += chances[i]
        for i in range(len(chances)):
            mass += chances[i]
            if mass > noise * total:
                ids[row], logprobs[row] = i, np.log(chances[i] / total)
                break


drop_stale(Path(__file__), draw.stats.cache_path)


def are_compiled() -> bool:
    """Return True if this process, or an earlier one (by numba's cache), has compiled the loops of a step."""
    folder = Path(decode.stats.cache_path or "")
    return bool(decode.signatures) or any(folder.glob(f"{Path(__file__).stem}.decode-*.nbi"))
