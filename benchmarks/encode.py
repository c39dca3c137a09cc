"""Images a second of the image tower, decoding included, against OpenCLIP's, in one run, as ratios.

    python benchmarks/encode.py --model local-dir:FOLDER --pictures FOLDER [--images 16] [--rounds 3] [--threads 1 2]

Everything takes the same photos in batches of 8, one way after the other in each round, and the median of the rounds
counts: processor time of one process, so that other work on the machine counts little, and the time on the clock.
OpenCLIP is 1: its own transform and `encode_image`, in fp32. The last columns compare features with OpenCLIP's: the
mean and the least cosine, and the largest difference of a component. transformers and OpenVINO are measured where they
are installed.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone, load_backbone
from dear.core.processor import this_processor
from dear.core.table import Table
from dear.data.decode import open_picture

BATCH = 8
Encode = Callable[[Tensor], Tensor]


def with_transformers(backbone: Backbone) -> Encode:
    """Makes transformers' CLIP of the same shapes, with random weights, on which its speed does not depend."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    tower = backbone.image
    config = CLIPVisionConfig(
        hidden_size=tower.width, intermediate_size=4 * tower.width, projection_dim=tower.dim,
        num_hidden_layers=tower.layers, num_attention_heads=tower.heads, image_size=tower.image_size[0],
        patch_size=tower.image_size[0] // tower.grid[0],
    )  # fmt: skip
    model = CLIPVisionModelWithProjection(config).eval()
    return lambda pixels: model(pixel_values=pixels).image_embeds


def with_openvino(backbone: Backbone, precision: str, threads: int) -> Encode:
    import openvino

    pixels = torch.zeros(BATCH, 3, *backbone.image.image_size)
    graph = openvino.convert_model(backbone.model.visual, example_input=pixels, input=[-1, *pixels.shape[1:]])
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    compiled = openvino.Core().compile_model(graph, "CPU", options)
    return lambda pixels: torch.from_numpy(compiled(pixels.numpy())[0].copy())


def ways(name: str, threads: int) -> dict[str, Encode]:
    plain = load_backbone(name)
    found: dict[str, Encode] = {
        "OpenCLIP fp32": plain.model.encode_image,
        "dear, fp32": plain.image.encode,
    }
    if this_processor().bf16:
        found["dear, --precision bf16"] = load_backbone(name, precision="bf16").image.encode
    for title, make in {
        "transformers fp32": lambda: with_transformers(plain),
        "OpenVINO f32": lambda: with_openvino(plain, "f32", threads),
        "OpenVINO bf16": lambda: with_openvino(plain, "bf16", threads),
    }.items():
        try:
            found[title] = make()
        except ImportError as error:
            print(f"{title} is left out: {error}")
    return found


@torch.no_grad()
def measure(name: str, paths: list[Path], rounds: int, threads: int) -> Table:
    torch.set_num_threads(threads)
    transform, encoders = load_backbone(name).preprocess, ways(name, threads)
    processor: dict[str, list[float]] = {title: [] for title in encoders}
    clock: dict[str, list[float]] = {title: [] for title in encoders}
    features: dict[str, Tensor] = {}
    for _ in range(rounds):
        for title, encode in encoders.items():
            read = open_picture if title.startswith("dear") else lambda path: Image.open(path).convert("RGB")
            starts, parts = (time.process_time(), time.perf_counter()), []
            for start in range(0, len(paths), BATCH):
                parts.append(encode(torch.stack([transform(read(path)) for path in paths[start : start + BATCH]])))
            processor[title].append((time.process_time() - starts[0]) / len(paths))
            clock[title].append((time.perf_counter() - starts[1]) / len(paths))
            features[title] = F.normalize(torch.cat(parts), dim=-1)
    first = next(iter(encoders))
    table = Table([f"{threads} threads", "ms an image", "times", "ms on the clock", "times ", "cosine", "difference"])
    for title, mine in features.items():
        cosine = (mine * features[first]).sum(-1)
        same = f"{cosine.mean():.5f}, {cosine.min():.5f}", f"{(mine - features[first]).abs().max():.0e}"
        times = [median(part[title]) for part in (processor, clock)]
        ratios = [median(part[first]) / median(part[title]) for part in (processor, clock)]
        figures = [f"{times[0] * 1e3:.0f}", f"{ratios[0]:.2f}", f"{times[1] * 1e3:.0f}", f"{ratios[1]:.2f}"]
        table.add(title, *figures, *(("", "") if "transformers" in title else same))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    found = sorted(path for path in args.pictures.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    paths = found[:: max(1, len(found) // args.images)][: args.images]
    print(f"{len(paths)} photos; {this_processor().line(bf16=False)}")
    for threads in args.threads:
        print(measure(args.model, paths, args.rounds, threads).text())


if __name__ == "__main__":
    main()
