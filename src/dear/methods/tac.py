"""TAC: deep prompts and tokens of the task, which are cluster centres of its class embeddings (CVPR 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.clip.masks import Masks
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.core.files import read_json
from dear.core.schema import check_shape
from dear.data.augment import CLEAN, RANDOM
from dear.methods.base import LabelledImages, Loss, Method, normalized
from dear.methods.deep_prompts import DASSL, WORDS, DeepPrompts, by_layer
from dear.methods.recipe import Recipe
from dear.methods.zero_shot import SIXTY, ensemble

CENTRES = 5
_Descriptions = dict[str, Annotated[list[str], Meta(min_length=1)]]


@dataclass(frozen=True)
class TacConfig(Settings):
    """Task tokens and learned tokens in all layers of both towers."""

    tokens: int = setting(5, "learned tokens per layer of both towers", low=1, high=60)
    views: int = setting(4, "random views of each image per step", low=1, high=100)
    dropout: float = setting(0.3, "dropout on the image feature", low=0.0, high=0.99)
    lambda_text: float = setting(20.0, "weight of the distance to the class embeddings", low=0.0, high=1e6)
    lambda_image: float = setting(25.0, "weight of the distance to frozen CLIP's image features", low=0.0, high=1e6)
    descriptions: str | None = setting(
        None, 'JSON file with descriptions of the classes: {"class": ["a sentence about it", ...], ...}'
    )


class Tac(DeepPrompts):
    """Text: BOT, task tokens, learned tokens, the whole prompt. Image: patches do not attend to the task tokens.

    L = CE + 20 |w - e| + 25 |f - f0|, |.| the mean over all elements; f0 is frozen CLIP's on the clean picture, e the
    class embeddings. Differs from the official code: sixty templates replace the descriptions written by a language
    model, unless --descriptions names a file; the frozen features have no dropout (there they have, by accident); the
    clean picture is that of evaluation (there it is squashed to a square); only learned weights are averaged, in fp32.
    """

    Config = TacConfig
    recipe = Recipe(DASSL, lr=0.0025, epochs=20, batch=8, crop=0.4, average="uniform").on(
        "cross-dataset", "domain", tokens=10, crop=0.8, epochs=5
    )
    config: TacConfig  # type: ignore[assignment]
    centres: Tensor  # [CENTRES, dim], of the classes trained on

    def __init__(self, backbone: Backbone, config: TacConfig) -> None:
        Method.__init__(self, backbone, config)
        image, text, like, count = backbone.image, backbone.text, backbone.image.like, self.config.tokens
        start = backbone.normal(text.layers, count, text.width)
        ids = text.tokenize([WORDS])[0][0, text.first_word : text.first_word + count]  # EOT too
        words = text.module.token_embedding(ids).detach()
        start[0, : len(words)] = words
        self.text_tokens = nn.Parameter(start)
        self.image_tokens = nn.Parameter(backbone.normal(image.layers, count, image.width))
        self.into_text = nn.Linear(backbone.dim, text.width).to(like)
        self.into_image = nn.Linear(backbone.dim, image.width).to(like)
        self.register_buffer("centres", like.new_zeros(CENTRES, backbone.dim))
        originals = image.originals
        mask = torch.ones(originals, originals + CENTRES + count, dtype=torch.bool, device=like.device)
        mask[1:, originals : originals + CENTRES] = False
        layers = range(1, image.layers + 1)
        self.masks = Masks(dict.fromkeys(layers, (mask[None, None], None)), image.heads, originals)
        self.views = (*[RANDOM] * config.views, CLEAN)

    def before_training(self, images: LabelledImages) -> None:
        self._embeddings = self._class_embeddings(images.classes)
        self.centres = centres(self._embeddings, CENTRES)

    def _class_embeddings(self, names: Sequence[str]) -> Tensor:
        """Class embeddings e, normalised, [classes, dim]: mean raw features of descriptions, or of templates."""
        file = self.config.descriptions
        descriptions = check_shape(read_json(file), _Descriptions, file, "see --help-all for its form") if file else {}
        embeddings = ensemble(self, names, SIXTY, normalised=False)
        with torch.no_grad():
            for row, name in enumerate(names):
                if name in descriptions:
                    embeddings[row] = F.normalize(self.backbone.text.encode(descriptions[name]).mean(0), dim=-1)
        return embeddings

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        count = CENTRES + self.config.tokens
        return [f"{'X ' * count}{WORDS} {name}." for name in names], range(1, 1 + count)

    def text_layers(self, classes: ClassTexts) -> dict[int, Tensor]:
        task = self.into_text(self.centres)
        tokens = [torch.cat([task, own]) for own in self.text_tokens]
        return by_layer(self.backbone.text.add_positions(tokens[0], classes.prompts), tokens)

    def image_layers(self) -> dict[int, Tensor]:
        task = self.into_image(self.centres)
        tokens = [torch.cat([task, own]) for own in self.image_tokens]
        return by_layer(self.backbone.image.norm_in(tokens[0]), tokens)

    def encode_image(self, x: LayerInput) -> Tensor:
        return normalized(F.dropout(self.class_feature(x), self.config.dropout, self.training))

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        images, count = len(x.states) // len(self.views), self.config.views
        features, text = self.encode_image(x.rows(slice(0, -images))), self.encode_text(self.classes)
        logits = self.logits(features, text)
        frozen = self.backbone.image.frozen_feature(x.rows(slice(-images, None))).repeat(count, 1)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels.repeat(count)),
            "text": self.config.lambda_text * (text - self._embeddings).abs().mean(),
            "image": self.config.lambda_image * (features[:, 0] - frozen).abs().mean(),
        }
        return Loss(torch.stack(list(parts.values())).sum(), parts, logits)


def centres(embeddings: Tensor, count: int, rounds: int = 100) -> Tensor:
    """Centres of k-means by cosine, normalised, [count, dim]; it starts at random classes, at some twice if few."""
    order = torch.randperm(len(embeddings)).repeat(-(-count // len(embeddings)))[:count]
    means = embeddings[order.to(embeddings.device)]
    for _ in range(rounds):
        nearest = (embeddings @ F.normalize(means, dim=-1).T).argmax(-1)
        members = (nearest[:, None] == torch.arange(count, device=nearest.device)).to(embeddings)
        sizes = members.sum(0)[:, None]
        moved = torch.where(sizes > 0, members.T @ embeddings / sizes.clamp(min=1), means)
        if (moved - means).norm() < 1e-4:
            break
        means = moved
    return F.normalize(moved, dim=-1)
