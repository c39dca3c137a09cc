"""Classifies images with the model beside this file: python classify.py IMAGE_OR_FOLDER... [--model model_int8.onnx]"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def to_pixels(image: Image.Image, settings: dict) -> np.ndarray:
    """Normalised pixels [3, height, width], as the model saw them in training; `settings` is model.json's "pixels"."""
    image, (height, width) = image.convert("RGB"), settings["size"]
    shortest = settings["resize"] == "shortest"  # keep the proportions and cut out the middle; or squash
    fit = [height * side // min(image.size) for side in image.size] if shortest else [width, height]
    left, top = round((fit[0] - width) / 2), round((fit[1] - height) / 2)
    resized = image.resize(fit, Image.Resampling[settings["interpolation"].upper()])
    values = np.asarray(resized.crop((left, top, left + width, top + height)), np.float32) / 255
    return ((values - np.float32(settings["mean"])) / np.float32(settings["std"])).transpose(2, 0, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files, or folders of images")
    parser.add_argument(
        "--model", default="model.onnx", help="file of the model, beside this one (default: %(default)s)"
    )
    args, here, suffixes = parser.parse_args(), Path(__file__).parent, Image.registered_extensions()
    files: list[Path] = []
    for name in map(Path, args.images):
        found = [name] if name.is_file() else sorted(p for p in name.rglob("*") if p.suffix.lower() in suffixes)
        if not found:
            parser.error(f"{name} is neither an image nor a folder with images")
        files += found
    about = json.loads((here / "model.json").read_text(encoding="utf-8"))
    model = onnxruntime.InferenceSession(here / args.model, providers=["CPUExecutionProvider"])
    decided = here / "decision.json"  # of `dear decide`
    temperature = json.loads(decided.read_text(encoding="utf-8"))["temperature"] if decided.is_file() else 1.0
    for path in files:
        try:
            with Image.open(path) as image:
                pixels = to_pixels(ImageOps.exif_transpose(image), about["pixels"])  # upright, as the camera was held
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            print(f"skipped: {path} cannot be read ({error})", file=sys.stderr)
            continue
        features, logits = model.run(None, {"pixels": pixels[None]})  # features: one row for each of "components"
        likelihood = np.exp((logits[0] - logits[0].max()) / temperature)
        best = likelihood.argmax()
        print(path, about["classes"][best], f"{likelihood[best] / likelihood.sum():.6f}", sep="\t")
