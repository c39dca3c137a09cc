"""PromptKD: learned image tokens that imitate a teacher on unlabelled images (Li et al., CVPR 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip.layer_input import LayerInput
from dear.clip.text import ClassTexts
from dear.core.config import setting
from dear.core.errors import DearError
from dear.methods.base import Loss, normalized
from dear.methods.deep_prompts import DASSL, VptConfig, VptDeep
from dear.methods.optional import Teacher
from dear.methods.recipe import Recipe
from dear.methods.shared.per_class import OnlyTrained


@dataclass(frozen=True)
class PromptKDConfig(VptConfig):
    """Tokens in the image tower, and their teacher."""

    image_tokens: int = setting(4, "learned tokens per image layer", low=1, high=1000)
    image_depth: int = setting(9, "how many of the first image layers have their own tokens", low=1, high=1000)
    teacher: str = setting(
        "", "OpenCLIP name of the teacher's backbone (published: ViT-L-14); empty: the student's own"
    )
    teacher_pretrained: str | None = setting(None, "OpenCLIP tag or checkpoint file of the teacher's backbone")
    imitation: float = setting(1000.0, "weight of the divergence from the teacher's predictions", low=0.0)


class _BatchNorm(nn.BatchNorm1d):
    """Batch normalisation; a batch of one image, which has no variance, is normalised as in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class PromptKD(OnlyTrained, VptDeep):
    """A teacher is trained with PromptSRC on the labelled images. Then, on *all* training images of *all* classes,
    without labels, L = 1000 KL(teacher || student), summed and divided by images and classes. A projector maps the
    student's class feature into the teacher's space, where it is compared with the teacher's class texts.

    Training uses images and names of the novel classes: the method is transductive, and reported in a table of its own.
    Differs from the official code: the teacher predicts once per image,
    without augmentation (there: per random crop); both use the last epoch (there: the best on *test* images); the
    teacher is trained for as many epochs as the student, on the student's backbone unless a larger one is named.
    """

    Config = PromptKDConfig
    recipe = Recipe(DASSL, lr=0.005, epochs=20, batch=8)
    config: PromptKDConfig
    class_texts: Tensor  # the teacher's, normalised, [trained classes, teacher's dim]
    probabilities: Tensor  # the teacher's, [unlabelled images, trained classes], on the host; only in training

    def set_sizes(self, classes: int, dim: int = 0) -> None:
        self.register_buffer("class_texts", self.image_tokens.new_zeros(classes, dim))
        if not dim:  # before its teacher is known
            return
        self.projector = nn.Sequential(
            nn.Linear(self.backbone.dim, dim), _BatchNorm(dim), nn.ReLU(), nn.Linear(dim, dim)
        ).to(self.image_tokens)

    def sizes(self) -> dict[str, int]:
        return {"dim": self.class_texts.shape[1]}

    def teacher(self) -> Teacher:
        return Teacher("promptsrc", self.config.teacher, self.config.teacher_pretrained, {"lr": 0.005, "batch": 8})

    def set_teacher(self, names: Sequence[str], text: Tensor, logits: Tensor) -> None:
        self.trained = tuple(names)
        self.set_sizes(*text.shape)
        self.class_texts = text.to(self.image_tokens)
        self.probabilities = logits.to("cpu", self.class_texts.dtype)
        for rows in self.probabilities.split(4096):  # in place: for ImageNet they have 5 GB
            rows.copy_(rows.softmax(-1))

    def targets(self, labels: Tensor) -> Tensor:
        """The teacher's probabilities of a batch, [images, trained classes]; `labels` are their rows."""
        return self.probabilities[labels]

    def encode_text(self, classes: ClassTexts) -> Tensor:
        """The teacher's class features, normalised, [classes, teacher's dim]."""
        if classes.names != self.trained and not self.can_answer(classes.names):
            raise DearError(
                "PromptKD has features of its training classes only: search by image, or choose another method."
            )
        return self.class_texts[self.trained_rows(classes.names)]

    def encode_image(self, x: LayerInput) -> Tensor:
        """Class features in the teacher's space, normalised, [batch, 1, teacher's dim]."""
        return normalized(self.projector(self.class_feature(x)))

    def loss(self, x: LayerInput, expected: Tensor) -> Loss:
        """The divergence from the teacher; `expected`: its probabilities, [images, trained classes]."""
        logits = self.logits(self.encode_image(x), self.class_texts)
        divergence = F.kl_div(logits.log_softmax(-1), expected, reduction="sum") / logits.numel()
        return Loss(self.config.imitation * divergence, {"teacher": divergence}, logits, expected.argmax(-1))
