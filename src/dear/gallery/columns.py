"""The columns of a gallery's table."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def vector_column(component: str) -> str:
    return f"{component}_vector"  # an attribute may itself be called "size" or "label"


def schema(components: Sequence[str], dim: int) -> Any:
    import pyarrow as pa

    about = [("path", pa.string()), ("size", pa.int64()), ("modified_ns", pa.int64()), ("sha256", pa.string())]
    vectors = [(vector_column(c), pa.list_(pa.float16(), dim)) for c in components]
    return pa.schema([*about, ("label", pa.string()), *vectors])


def as_vectors(values: np.ndarray) -> Any:
    """Features [rows, dim] -> an Arrow column."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(values.astype(np.float16).ravel()), values.shape[1])


def as_matrix(column: Any, dim: int) -> np.ndarray:
    """An Arrow column, of a batch or of a whole table -> features [rows, dim] in float32."""
    chunks = getattr(column, "chunks", [column])
    parts = [chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim) for chunk in chunks]
    return np.concatenate(parts).astype(np.float32) if parts else np.empty((0, dim), np.float32)
