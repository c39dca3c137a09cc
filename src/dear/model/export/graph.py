"""The image side of an adapted model as an ONNX graph, its text features constant inside."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dear.core.errors import DearError
from dear.methods.base import Method

MODEL = "model.onnx"
_ONE_FILE = 1_900_000_000  # bytes; a protobuf ends at 2 GB, so weights beyond it go into a file of their own


class ImageSide(nn.Module):
    """pixels [batch, 3, height, width] -> features [batch, components, dim] and logits [batch, classes]."""

    text: Tensor

    def __init__(self, model: Method, text: Tensor) -> None:
        super().__init__()
        self.model = model
        self.visual = model.backbone.image.visual  # a method keeps the backbone out of its state; a graph needs it in
        self.register_buffer("text", text)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        features = self.model.encode_image(self.model.layer_input(pixels))
        return features, self.model.logits(features, self.text)


def require_packages() -> None:
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise DearError(f"Export needs {' and '.join(missing)}: pip install 'dear-vlm[export]'.")


def write_graph(model: Method, text: Tensor, path: Path) -> None:
    """Writes the graph; `text` are the normalised features of its classes, [classes, dim]."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript.optimizer import optimize

    side = ImageSide(model, text).eval()
    pixels = torch.zeros(2, 3, *model.backbone.image.image_size)  # a batch of one would be taken for a constant
    weights = sum(value.numel() * value.element_size() for value in side.state_dict().values())
    with quiet():
        program: Any = torch.onnx.export(
            side,
            (pixels,),
            input_names=["pixels"],
            output_names=["features", "logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        # The engine cuts queries from keys and values in one frozen matrix. The exporter leaves so large a cut to
        # be made in every run, and then int8 can't see that it is constant.
        optimize(program.model, input_size_limit=weights, output_size_limit=weights)
        ClearMetadataAndDocStringPass()(program.model)  # the exporter notes source files of this machine in each node
        program.save(path, external_data=weights > _ONE_FILE)


def open_session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@contextmanager
def quiet() -> Iterator[None]:
    """Exporter and quantiser think aloud, in warnings and in the log; what matters here is checked afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
