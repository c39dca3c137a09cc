"""`dear.fit` from kept features, against scikit-learn's logistic regression and one pass of encoding, in one run.

    python benchmarks/fit.py [--classes 1000] [--shots 16] [--threads 2]

Features are synthetic, [classes * shots, 512]: class texts, shifted means and noise, by which zero-shot is right for
about two images of three. Ours is everything that a fit does after encoding: all three closed forms with their choices
by leave-one-out, the comparison, and the learning curve. Logistic regression has its default settings (its one setting,
C, is not chosen). Encoding: ViT-B/16 with random weights, 16 images, times the number of images. Processor time of one
process, so that other work on the machine counts little, and the peak memory after our part.
"""

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import open_clip
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from dear.sklearn import DearClassifier
from dear.trials.curve import learning_curve

DIM, ENCODED = 512, 16


def synthetic(classes: int, shots: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Texts [classes, dim], features and labels to fit, and as many to test on."""
    torch.manual_seed(0)
    text = F.normalize(torch.randn(classes, DIM, dtype=torch.float64), dim=1)
    means = F.normalize(text + 2.5 * F.normalize(torch.randn_like(text), dim=1), dim=1)
    labels = torch.arange(classes).repeat_interleave(shots)
    first, second = (F.normalize(means[labels] + 0.09 * torch.randn(len(labels), DIM), dim=1) for _ in range(2))
    return text, first, labels, second, labels


def seconds(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, processor time and time on the clock."""
    processor, clock = time.process_time(), time.perf_counter()
    result = work()
    return result, time.process_time() - processor, time.perf_counter() - clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    text, features, labels, others, truth = synthetic(args.classes, args.shots)
    X, y = features.numpy(), labels.numpy()
    zero_shot = (others @ text.T).argmax(1).eq(truth).double().mean().item()
    print(f"{args.classes} classes x {args.shots} images x {DIM}, {args.threads} threads; zero-shot {zero_shot:.1%}")

    def ours() -> DearClassifier:
        model = DearClassifier(text=text.numpy()).fit(X, y)
        learning_curve(model.head_, features.float(), labels, text.float(), [str(name) for name in model.classes_])
        return model

    model, fit, clock = seconds(ours)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"fit: {fit:.1f} s of processor time, {clock:.1f} s on the clock, peak memory {memory:.2f} GiB; "
          f"{model.method_}, {model.score(others.numpy(), y):.1%} right")  # fmt: skip

    encoder = open_clip.create_model("ViT-B-16").visual.eval()
    with torch.no_grad():
        _, batch, _ = seconds(lambda: encoder(torch.randn(ENCODED, 3, 224, 224)))
    encoding = batch / ENCODED * len(labels)
    print(f"encoding {len(labels)} images: {encoding:.0f} s; a fit takes {fit / encoding:.1%} of it")

    warnings.simplefilter("ignore")  # it stops after its default number of iterations
    logistic, slow, _ = seconds(lambda: LogisticRegression().fit(X, y))
    print(f"logistic regression: {slow:.1f} s, {logistic.score(others.numpy(), y):.1%} right; "
          f"it takes {slow / fit:.1f} times as long as a fit")  # fmt: skip


if __name__ == "__main__":
    main()
