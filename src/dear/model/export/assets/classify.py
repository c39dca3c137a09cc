"""Classifies the images of a folder with the model beside this file: python classify.py IMAGES [model_int8.onnx]"""

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
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    here, (folder, name) = Path(__file__).parent, [*sys.argv[1:], "model.onnx"][:2]
    about = json.loads((here / "model.json").read_text(encoding="utf-8"))
    model = onnxruntime.InferenceSession(here / name, providers=["CPUExecutionProvider"])
    for path in (p for p in sorted(Path(folder).iterdir()) if p.suffix.lower() in Image.registered_extensions()):
        with Image.open(path) as image:
            pixels = to_pixels(ImageOps.exif_transpose(image), about["pixels"])  # upright, as the camera was held
        features, logits = model.run(None, {"pixels": pixels[None]})  # features: one row for each of "components"
        likelihood = np.exp(logits[0] - logits[0].max())
        best = likelihood.argmax()
        print(path, about["classes"][best], f"{likelihood[best] / likelihood.sum():.6f}", sep="\t")
