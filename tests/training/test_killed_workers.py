"""A decoding process that is killed, and the end of a command that is killed while it encodes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dear.core.errors import DearError, os_errors_as_dear_errors
from noisy_pictures import noisy_folders

SENTENCE = "dear: A process that decodes images was killed, most likely for lack of memory"

# Commands in one process; the first picture that is decoded in a worker of its own is the last of this worker.
_WORKERS = """
import os, signal, sys
from torch.utils.data import get_worker_info
from dear.cli import main
from dear.data import decode, loading
from dear.heads import stream

loading.WORKERS = stream.WORKERS = 2
decode_fully = decode._decode_fully

def deadly(*given):
    if get_worker_info() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return decode_fully(*given)

decode._decode_fully = deadly
for command in sys.argv[1:]:
    print(main(command.split()), file=sys.stderr)
"""

# The whole process is killed when so many images are kept.
_ENCODING = """
import os, signal, sys
from dear.cli import main
from dear.training import store
from dear.data import loading

save, kept, loading.WORKERS = store.save_tensors, [], 0

def deadly(*given):
    save(*given)
    kept.append(given)
    if len(kept) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

store.save_tensors = deadly
sys.exit(main(sys.argv[2:]))
"""


def _python(program: str, *words: object) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program, *map(str, words)], text=True,
                          capture_output=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return noisy_folders(tmp_path_factory.mktemp("photos") / "photos", ("red", "green"), 40)


def test_a_killed_worker_ends_every_command_in_the_same_sentence(
    photos: Path, model_folder, finished_run, tmp_path: Path
) -> None:
    model = f"--model local-dir:{model_folder} --device cpu"
    done = _python(
        _WORKERS,
        f"train --data {photos} {model} --method clip-adapter --epochs 1 --workers 2 --out {tmp_path / 'train'}",
        f"fit {photos} {model} --cache {tmp_path / 'cache'} --out {tmp_path / 'fit'}",
        f"roles {model} --using phrases --images {photos} --first-layer 2 --out {tmp_path / 'roles.json'}",
        f"index {finished_run} {photos} --device cpu --out {tmp_path / 'gallery'}",
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("dear: ") or line.isdecimal()]
    assert len(said) == 8, done.stderr
    assert all(line.startswith(SENTENCE) for line in said[::2]), said
    assert said[1::2] == ["2"] * 4
    assert "Traceback" not in done.stderr


def test_the_death_of_a_worker_is_told_wherever_it_is_raised() -> None:
    """PyTorch raises it in the main thread, whatever that does: here it decodes an image itself."""

    @os_errors_as_dear_errors()
    def decode(hidden: bool) -> None:
        try:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        except RuntimeError as error:
            raise DearError("The image a.png cannot be read.") from (None if hidden else error)

    for hidden in (True, False):
        with pytest.raises(DearError, match="A process that decodes images was killed"):
            decode(hidden)


def test_a_fit_that_was_killed_while_it_encoded_equals_a_whole_one(tmp_path: Path) -> None:
    """To the bit, though the image that was left is encoded alone."""
    photos = noisy_folders(tmp_path / "photos", ("red", "green"), 6)

    def fit(name: str, kept: int) -> int:
        words = ["fit", photos, "--model", "dear-mini", "--method", "gda", "--device", "cpu"]
        return _python(_ENCODING, kept, *words, "--cache", tmp_path / name, "--out", tmp_path / name / "run").returncode

    assert [fit("whole", 99), fit("killed", 11), fit("killed", 99)] == [0, -signal.SIGKILL, 0]
    (one, other) = (next((tmp_path / name / "run").glob("adapter_*.safetensors")) for name in ("whole", "killed"))
    assert one.read_bytes() == other.read_bytes()
