"""The server of `dear serve`, with or without its page: an adapted model behind HTTP, safe to leave running."""

import importlib.util

from dear.core.errors import DearError

_PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "swagger_ui_bundle")


def require_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise DearError(f"The server needs {' and '.join(missing)}: pip install 'dear-vlm[serve]'.")
