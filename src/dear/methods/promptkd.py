"""PromptKD: an image tower with learned tokens that imitates a teacher on unlabelled images (Li et al., CVPR 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.image import LayerInput, Observer
from dear.core.config import Config, setting
from dear.core.errors import DearError
from dear.methods.base import Loss, Teacher, Texts
from dear.methods.deep_prompts import DASSL, VptConfig, VptDeep
from dear.methods.shared.class_index import positions


@dataclass(frozen=True)
class PromptKDConfig(VptConfig):
    """Tokens in the image tower, and whom they imitate."""

    image_tokens: int = setting(4, "learned tokens in each of the first image layers", low=1, high=1000)
    image_depth: int = setting(9, "image layers with tokens of their own", low=1, high=1000)
    teacher: str = setting(
        "", "OpenCLIP name of the teacher's backbone (published: ViT-L-14); empty: the student's own"
    )
    teacher_pretrained: str | None = setting(None, "OpenCLIP tag or checkpoint file of the teacher's backbone")
    imitation: float = setting(1000.0, "weight of the divergence from the teacher's answers", low=0.0)


class PromptKD(VptDeep):
    """A teacher learns by PromptSRC from the labelled images. Then, on *all* training images of *all* classes, without
    their labels, L = 1000 KL(teacher || student), summed and divided by images and classes. The student's class feature
    goes through a projector into the teacher's space, and is compared with the teacher's class texts.

    It has seen images and names of the novel classes: it is transductive, and stands in a table of its own. It answers
    only classes that were there in training. Differs from the official code: the teacher answers once for each image as
    it is (there: for every random crop); the last epoch is kept of both (there: the best on *test* images); the teacher
    learns for as many epochs as the student, and is the student's own backbone unless a larger one is named.
    """

    Settings = PromptKDConfig
    recipe: ClassVar[Mapping[str, Any]] = {**DASSL, "lr": 0.005, "epochs": 20, "batch": 8}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    config: PromptKDConfig
    class_texts: Tensor  # the teacher's, normalised, [known classes, teacher's dim]
    answers: Tensor  # the teacher's, probabilities, [unlabelled images, known classes]; only in training

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        self.known: tuple[str, ...] = ()
        if facts is not None:
            self._build(facts["classes"], backbone.image.visual.proj.new_zeros(len(facts["classes"]), facts["dim"]))

    def _build(self, names: Sequence[str], texts: Tensor) -> None:
        self.known, dim = tuple(names), texts.shape[1]
        self.register_buffer("class_texts", texts.to(self.image_tokens))
        self.projector = nn.Sequential(
            nn.Linear(self.backbone.dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim)
        ).to(self.image_tokens)

    @property
    def dim(self) -> int:
        return self.class_texts.shape[1]

    def facts(self) -> dict[str, Any]:
        return {"classes": list(self.known), "dim": self.dim}

    def teacher(self) -> Teacher:
        return Teacher("promptsrc", self.config.teacher, self.config.teacher_pretrained, {"lr": 0.005, "batch": 8})

    def learn_from(self, names: Sequence[str], texts: Tensor, answers: Tensor) -> None:
        self._build(names, texts)
        self.answers = answers.to(self.class_texts).softmax(-1)

    def can_answer(self, names: Sequence[str]) -> bool:
        return None not in positions(self.known, names)

    def set_classes(self, names: Sequence[str], template: str) -> None:
        if self.known and not self.can_answer(names):
            raise DearError("PromptKD can only answer classes that were there in training: choose another method.")
        super().set_classes(names, template)

    def text_features(self, texts: Texts | None = None) -> Tensor:
        """The teacher's, normalised, [classes, teacher's dim]."""
        return self.class_texts[positions(self.known, (texts or self.texts).names)]

    def encode_text(self, sentences: Sequence[str]) -> Tensor:
        raise DearError("PromptKD keeps its teacher's texts of the classes alone: no other text can be compared.")

    def image_features(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        """In the teacher's space, normalised, [batch, 1, teacher's dim]."""
        return F.normalize(self.projector(self.projected(entry, observe)), dim=-1)[:, None]

    def loss(self, entry: LayerInput, labels: Tensor) -> Loss:
        """labels: the rows of the images among the teacher's answers."""
        logits = self.logits(self.image_features(entry), self.class_texts)
        answers = self.answers[labels]
        divergence = F.kl_div(logits.log_softmax(-1), answers, reduction="sum") / logits.numel()
        return Loss(self.config.imitation * divergence, {"teacher": divergence}, logits, answers.argmax(-1))
