"""A smaller model: weights in 8 bits, activations scaled as they come (onnxruntime's dynamic quantisation)."""

from pathlib import Path

from dear.model.export.graph import quiet

INT8 = "model_int8.onnx"


def write_int8(model: Path, path: Path) -> None:
    """Writes `model` with the weights of its blocks in 8 bits to `path`.

    reduce_range: without VNNI a processor adds two products of 8 bits in 16 and saturates, and a ViT-B/16 then
    guesses (95 -> 19% on five classes of DTD); 7 bits of weights always fit.
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
            nodes_to_quantize=[node.name for node in inner if _takes_8_bits(shapes.get(node.input[1]))],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    _one_at_a_time(path)


def _one_at_a_time(path: Path) -> None:
    """Activations of a batch are scaled together: an answer would depend on its neighbours, so there are none."""
    import onnx

    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)


def _takes_8_bits(shape: tuple[int, ...] | None) -> bool:
    """Is it a weight [inputs, outputs] that does not narrow?

    Those that do are the projections to features, which are small, and the second half of each MLP, whose few huge
    activations leave no steps for the rest: it makes four fifths of the error in ViT-B/16.
    """
    return shape is not None and len(shape) == 2 and shape[0] <= shape[1]
