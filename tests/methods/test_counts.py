"""Every method learns as many numbers as its publication says."""

from collections.abc import Callable

import naive_text
import naive_words
import pytest
import token_cases


def network(dim: int, hidden: int, out: int) -> int:
    return dim * hidden + hidden + hidden * out + out


def skipt(v: int, t: int, d: int, layers: int) -> int:
    return sum((layers - layers // 2) * (12 * w * w + 13 * w) + 2 * w + w * d for w in (v, t))


def mmrlpp(v: int, t: int, d: int, layers: int) -> int:
    low_rank = (layers - layers // 2 + 1) * (4 * (v + t + 2 * 512) + v + t)
    return 5 * 512 + 512 * (v + t) + low_rank + 64 * (v + d)


# The published count on ViT-B/16, and the count for widths of image tower, text tower and joint space, and layers.
COUNTS: dict[str, tuple[int, Callable[[int, int, int, int], int]]] = {
    "coop": (2048, lambda v, t, d, L: 4 * t),
    "kgcoop": (2048, lambda v, t, d, L: 4 * t),
    "prograd": (8192, lambda v, t, d, L: 16 * t),
    "tcp": (331_904, lambda v, t, d, L: 4 * t + network(d, d // 4, 4 * t)),
    "atprompt": (3072, lambda v, t, d, L: 3 * 2 * t),
    "clip-adapter": (131_072, lambda v, t, d, L: 2 * d * (d // 4)),
    "cocoop": (35_360, lambda v, t, d, L: 4 * t + network(d, max(1, d // 16), t)),
    "textrefiner": (1_052_672, lambda v, t, d, L: 4 * t + 2 * (d * d + d) + 2 * d + 2 * d * d),
    "vpt-deep": (73_728, lambda v, t, d, L: 8 * v * L),
    "vpt-shallow": (6_144, lambda v, t, d, L: 8 * v),
    "ivlp": (46_080, lambda v, t, d, L: 4 * min(9, L) * (v + t)),
    "maple": (3_555_072, lambda v, t, d, L: min(9, L) * (2 * t + t * v + v)),
    "promptsrc": (46_080, lambda v, t, d, L: 4 * min(9, L) * (v + t)),
    "provp": (147_456, lambda v, t, d, L: 16 * v * L),
    "mmrl": (4_992_256, lambda v, t, d, L: 5 * 512 + (L - L // 2 + 1) * (513 * v + 513 * t) + v * d),
    "mmrlpp": (813_312, mmrlpp),
    "clip-lora": (184_320, lambda v, t, d, L: L * 3 * 2 * 2 * (v + t)),
    "2sfs": (61_440, lambda v, t, d, L: L * (v + t) * 4),
    "clip-svd": (92_160, lambda v, t, d, L: L * (v + t) * 6),
    "tac": (733_440, lambda v, t, d, L: 5 * L * (v + t) + (d + 1) * (v + t)),
    "skipt": (62_099_456, skipt),
    "fine-tune": (85_449_216, lambda v, t, d, L: L * (12 * v * v + 13 * v) + 2 * v + v * d),
}
ON_WORDS = ("coop", "kgcoop", "prograd", "tcp", "atprompt", "clip-adapter", "cocoop", "textrefiner")


@pytest.mark.parametrize("name", COUNTS)
def test_learns_as_many_numbers_as_published(tiny, name: str) -> None:
    published, formula = COUNTS[name]
    assert formula(768, 512, 512, 12) == published
    method = (naive_text if name in ON_WORDS else token_cases).make(tiny, name)
    learned = {key: p.numel() for key, p in method.named_parameters() if key != "classifier"}  # 2SFS: a row per class
    assert sum(learned.values()) == formula(48, 32, 24, 4)


def test_a_cache_has_a_key_for_each_shot(tiny) -> None:
    cache = naive_text.make(tiny, "tip-adapter-f")
    cache.before_training(naive_words.LabelledImages(naive_text.pixels()))
    assert sum(p.numel() for p in cache.parameters()) == len(naive_text.LABELS) * 24


def test_a_student_has_as_many_parameters_as_published(tiny) -> None:
    def count(width: int, dim: int, teacher: int, depth: int) -> int:
        return depth * 4 * width + dim * teacher + teacher + 2 * teacher + teacher * teacher + teacher

    assert count(768, 512, 768, 9) == 1_013_760
    assert sum(p.numel() for p in naive_words.taught(tiny).parameters()) == count(48, 24, 20, 4)
