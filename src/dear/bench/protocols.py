"""The paper's evaluation protocols: their names, what each measures, and the names of evaluations and splits."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

BASE_TO_NOVEL, FEW_SHOT, CROSS_DATASET, DOMAIN = "base-to-novel", "few-shot", "cross-dataset", "domain"
BASE, NOVEL, ALL = "base", "novel", "all"
TEST, HELD_OUT = "test", "held-out"

FEW_SHOTS = (1, 2, 4, 8, 16)
SPLITS = (TEST, HELD_OUT)


@dataclass(frozen=True)
class Protocol:
    """`evaluations`: names of what is measured; empty where those are the source dataset and the targets."""

    title: str
    summary: str
    evaluations: tuple[str, ...] = ()

    @property
    def has_targets(self) -> bool:
        return not self.evaluations


PROTOCOLS = {
    BASE_TO_NOVEL: Protocol(
        "Base to novel", "train on the first half of the classes, test on each half", (BASE, NOVEL)
    ),
    FEW_SHOT: Protocol(
        "Few-shot", f"train on {', '.join(map(str, FEW_SHOTS[:-1]))} and {FEW_SHOTS[-1]} images per class, all classes",
        (ALL,),
    ),
    CROSS_DATASET: Protocol("Cross-dataset", "train on one dataset, test on others with other classes"),
    DOMAIN: Protocol(
        "Domain generalization", "train on one dataset, test on others that show the same classes in another style"
    ),
}  # fmt: skip

if TYPE_CHECKING:
    ProtocolName = str
else:
    ProtocolName = Literal[tuple(PROTOCOLS)]  # of a result file: no other name is accepted
