"""OpenCLIP without the packages that it imports and a plain CLIP never uses: half of what a command starts with.

In a process of the command line, `import open_clip` leaves out timm and transformers, which only some towers need, and
PyTorch's compiler, which torchvision asks for one function. `complete` brings them back when a model needs them.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_PACKAGE, _LEFT_OUT = "open_clip", ("timm", "transformers")
_COMPILER, _ITS_UTILS = "torch._dynamo", "torch._dynamo.utils"


class _Lean(MetaPathFinder, Loader):
    """Finds OpenCLIP, once, and imports it so."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname != _PACKAGE or any(name in sys.modules for name in (*_LEFT_OUT, _COMPILER)):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            self._usual, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        import torch  # noqa: F401 - as it is

        utils: Any = ModuleType(_ITS_UTILS)
        utils.is_compile_supported = _is_compile_supported
        sys.modules.update({_COMPILER: ModuleType(_COMPILER), _ITS_UTILS: utils})
        sys.modules.update(dict.fromkeys(_LEFT_OUT))  # type: ignore[arg-type]  # None: importing it is an error
        try:
            self._usual.exec_module(module)  # type: ignore[union-attr]
        except Exception:  # another version, which needs more
            _forget("torchvision", f"{_PACKAGE}.")
            self._bring_back()
            self._usual.exec_module(module)  # type: ignore[union-attr]
        self._bring_back()

    @staticmethod
    def _bring_back() -> None:
        for name in (_COMPILER, _ITS_UTILS, *_LEFT_OUT):
            if getattr(sys.modules.get(name), "__file__", None) is None:
                sys.modules.pop(name, None)


_finder = _Lean()


def _is_compile_supported(device: Any) -> Any:
    return importlib.import_module(_ITS_UTILS).is_compile_supported(device)


def _forget(*beginnings: str) -> None:
    for name in [name for name in sys.modules if name.startswith(beginnings)]:
        del sys.modules[name]


def import_lean() -> None:
    """From here on OpenCLIP is imported without the rest; for a process that is nobody else's."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def complete() -> None:
    """Lets the next import of OpenCLIP be a whole one; before any model is built."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        _forget(_PACKAGE)
