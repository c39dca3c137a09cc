"""Which of PyTorch's products are fast on this processor: measured once, in a process that may die, and remembered.

PyTorch multiplies fp32 matrices by MKL, which on some processors leaves out half of what they can do; oneDNN, which it
has for half precision, multiplies fp32 ones as exactly. bf16 needs instructions that not every processor has, and where
they are announced in vain, the first product ends the process.
"""

import platform
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from dear.core.errors import DearError, warn
from dear.core.files import read_json, user_cache, write_json
from dear.core.progress import phase
from dear.core.schema import Finite, check_shape

_WORTH = 1.03  # times as fast, from which the other library is taken
_LONGEST = 120.0  # seconds to wait for the answer
_ROUNDS = 5


class Processor(NamedTuple):
    """How many times as fast as PyTorch's fp32 products others are here; 0: they do not work."""

    onednn: Finite = 0.0  # in fp32
    bf16: Finite = 0.0

    @property
    def takes_onednn(self) -> bool:
        return self.onednn >= _WORTH

    def line(self, bf16: bool) -> str:
        """A line for the user, what is taken here and why; `bf16`: whether it was asked for."""
        exact = f"{self.onednn:.2g} times as fast as those of MKL" if self.onednn else "which do not work here"
        text = f"fp32 products by {'oneDNN' if self.takes_onednn else 'PyTorch as usual'} (oneDNN's: {exact})"
        if bf16:
            return f"processor: bf16 products, {self.bf16:.2g} times as fast as in fp32"
        return f"processor: {text}" + (f"; --precision bf16: {self.bf16:.2g} times" if self.bf16 > _WORTH else "")


@cache
def this_processor() -> Processor:
    """The answer in the user's cache; if there is none for this processor and PyTorch, it is measured: some seconds."""
    from torch import __version__ as torch_version

    name = f"{_model()}, torch {torch_version}"
    try:
        file: Path | None = user_cache() / f"processor-{crc32(name.encode()):08x}.json"
    except RuntimeError:  # a user without a home
        file = None
    if file is not None and file.is_file():
        with suppress(DearError, KeyError):
            found = check_shape(read_json(file), dict[str, float], str(file), "remove it")
            return Processor(found["onednn"], found["bf16"])
    with phase("measuring this processor, once"):
        found = _in_a_child()
    if found is None:
        return Processor()
    if file is not None:
        try:
            write_json(file, found._asdict())
        except (DearError, OSError) as error:
            warn(f"What this processor computes fast cannot be remembered, so each command measures it: {error}")
    return found


def _model() -> str:
    """Model and instructions of the processor."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        parts = [line.partition(":")[2] for line in lines if line.startswith(("model", "flags", "Features", "CPU "))]
        if parts:
            return ",".join(parts)
    return f"{platform.machine()} {platform.processor()} {platform.platform()}"


def _in_a_child() -> Processor | None:
    """Measures; None: no answer came in time, or no other process could be started."""
    command = [sys.executable, "-m", "dear.core.processor"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST, check=False)
    except (OSError, TypeError, ValueError, subprocess.SubprocessError):
        return None
    # A line for each product that worked, until the process died.
    lines = (line.split() for line in done.stdout.splitlines())
    return Processor(**{line[0]: float(line[1]) for line in lines if line and line[0] in Processor._fields})


def _print_speeds() -> None:
    """Prints, for each kind of product that is right, how many times as fast as PyTorch's own it is, on one thread."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(1)
    x, weight, bias = torch.randn(394, 768), torch.randn(3072, 768), torch.randn(3072)
    half = weight.bfloat16(), bias.bfloat16()

    def usual() -> torch.Tensor:
        return F.linear(x, weight, bias)

    def onednn() -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    def bf16() -> torch.Tensor:
        return F.linear(x.bfloat16(), *half).float()

    for way, most in ((onednn, 1e-5), (bf16, 1e-2)):
        with suppress(Exception):
            if not (way() - usual()).norm() <= most * usual().norm():
                continue
            seconds = {usual: [], way: []}  # type: ignore[var-annotated]
            for _ in range(_ROUNDS):
                for one, times in seconds.items():
                    start = time.process_time()
                    one()
                    times.append(time.process_time() - start)
            print(way.__name__, f"{min(seconds[usual]) / min(seconds[way]):.3f}", flush=True)


if __name__ == "__main__":
    _print_speeds()
