"""The image side of an adapted model as an ONNX graph, with constant text features; and a smaller one in 8 bits."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dear.methods.base import Method

_ONE_FILE = 1_900_000_000  # bytes; larger weights get a file of their own: a protobuf holds 2 GB


class ImageSide(nn.Module):
    """pixels [batch, 3, height, width] -> features [batch, components, dim] and logits [batch, classes]."""

    text: Tensor

    def __init__(self, model: Method, text: Tensor) -> None:
        super().__init__()
        self.model = model
        self.visual = model.backbone.image.visual  # not in the state of a method, but of the graph
        self.register_buffer("text", text)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        features = self.model.encode_image(self.model.layer_input(pixels))
        return features, self.model.logits(features, self.text)


def write_graph(model: Method, text: Tensor, path: Path) -> None:
    """Writes the graph; `text`: normalised features of the classes, [classes, dim]."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript.optimizer import optimize

    side = ImageSide(model, text).eval()
    pixels = torch.zeros(2, 3, *model.backbone.image.image_size)  # a batch of one would become a constant
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
        # The towers slice queries, keys and values from one frozen matrix. The exporter would leave so large a slice
        # to every run, and int8 would not see that it is constant.
        optimize(program.model, input_size_limit=weights, output_size_limit=weights)
        ClearMetadataAndDocStringPass()(program.model)  # the exporter notes source files of this machine in each node
        program.save(path, external_data=weights > _ONE_FILE)


def write_int8(model: Path, path: Path) -> None:
    """Writes `model` with the weights of its blocks in 8 bits to `path` (onnxruntime's dynamic quantisation).

    reduce_range: without VNNI a processor adds two 8-bit products in 16 bits and saturates, and a ViT-B/16 then
    guesses (95 -> 19% on five classes of DTD); 7-bit weights always fit.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(model, load_external_data=False).graph
    shapes = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    inner = [node for node in graph.node if node.op_type == "MatMul" and "logits" not in node.output]
    with quiet():
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=[node.name for node in inner if _is_quantised(shapes.get(node.input[1]))],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    small = onnx.load(path)
    for value in (*small.graph.input, *small.graph.output):  # images of a larger batch would be scaled together
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(small, path)


def _is_quantised(shape: tuple[int, ...] | None) -> bool:
    """True for the shape of a weight [inputs, outputs] with at least as many outputs as inputs.

    The others are the projections to features, which are small, and the second layer of each MLP: its few huge
    activations leave no steps for the rest, which causes four fifths of the error in ViT-B/16.
    """
    return shape is not None and len(shape) == 2 and shape[0] <= shape[1]


@contextmanager
def quiet() -> Iterator[None]:
    """Hides the warnings and logs of exporter and quantiser; their result is checked afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
