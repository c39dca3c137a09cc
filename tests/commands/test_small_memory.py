"""The main commands where no more than 6 GB can be reserved: none may ask for memory that its files do not need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noisy_pictures import noisy_folders

_LIMIT = 6 * 10**9  # bytes; PyTorch and LanceDB alone reserve 4 of them, though they use 1

# One process for all: most of the time goes into imports.
_COMMANDS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from dear.cli import main
for line in sys.stdin.read().splitlines():
    if main(line.split()):
        sys.exit(f"failed: {{line}}")
import dear
from pathlib import Path
from dear.server.api import Service
assert dear.load("run").predict("photos/a/0.png").choice
for model in ("run", "exported"):
    with Service.open(Path(model), Path("gallery") if model == "run" else None):
        pass
"""
_LINES = """
train TINY --out run
train TINY --out run --resume
predict run photos/a
explain run photos/a/0.png --out why.png
index run photos --out gallery
search gallery --image photos/a/0.png
export run --onnx exported --check 2
bench few-shot TINY --methods zero-shot --seeds 1 --datasets photos --out bench
doctor run gallery exported bench
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no limit of this kind")
def test_main_commands_within_6_gb(tmp_path: Path, model_folder: Path, role_file: Path) -> None:
    noisy_folders(tmp_path / "photos", "ab", 6)
    tiny = f"--model local-dir:{model_folder} --shots 1 --epochs 1 --workers 0 --device cpu"
    lines = _LINES.replace("train TINY", f"train TINY --data photos --method dear --roles {role_file} --first-layer 2")
    # Every thread reserves a stack and an arena: the limit must not depend on the number of cores.
    names = ("OMP_NUM_THREADS", "TOKIO_WORKER_THREADS", "LANCE_CPU_THREADS", "RAYON_NUM_THREADS")
    threads = dict.fromkeys(names, "1") | {"MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS.format(limit=_LIMIT)],
        input=lines.replace("TINY", tiny).strip(), text=True, cwd=tmp_path, capture_output=True, timeout=600,
        env={**os.environ, **threads},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
