"""Optional packages, by the extra that installs them: `pip install 'dear-vlm[EXTRA]'`."""

import importlib.util

from dear.core.errors import DearError

EXTRAS = {
    "data": ("datasets", "pyarrow"),
    "gallery": ("lancedb", "numkong"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "roles": ("sentence_transformers", "hdbscan", "umap"),
    "serve": ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "swagger_ui_bundle"),
    "ray": ("ray",),
    "hf": ("transformers", "tokenizers"),
    "sklearn": ("sklearn",),
}


def absent_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def require_extra(what: str, extra: str) -> None:
    """Refuses to begin what needs an extra, if one of its packages is not installed."""
    if absent := absent_packages(extra):
        raise DearError(f"{what} needs {' and '.join(absent)}: pip install 'dear-vlm[{extra}]'.")
