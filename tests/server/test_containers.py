"""The image of `dear serve` and the Space, as far as they can be tried without Docker."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dear.cli import main
from dear.server.api import Service
from dear.server.page.views import Page
from dear.server.server import make_app
from mean_color import b64

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def words(instruction: str) -> list[str]:
    """The JSON list of the last such instruction of the Dockerfile."""
    return json.loads(re.findall(rf"^{instruction}.*?(\[.*\])$", IMAGE, re.MULTILINE)[-1])


def test_the_health_check_of_the_image_tells_a_server_from_none(run, serve_live) -> None:
    program, *arguments = words("HEALTHCHECK")
    assert program == "python"

    def check(port: int) -> int:
        here = [argument.replace(":8000", f":{port}") for argument in arguments]
        return subprocess.run([sys.executable, *here], capture_output=True).returncode

    with serve_live(Service.open(run, None)) as client:
        assert check(client.port) == 0
    assert check(client.port) != 0


def test_the_image_starts_the_server_as_nobody_special(capsys) -> None:
    last = IMAGE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 1000$", last, re.MULTILINE)
    assert words("ENTRYPOINT") == ["dear"]
    assert main(words("CMD")) == 2  # there is no /model here; a wrong flag would be told by argparse
    assert "/model" in capsys.readouterr().err
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    needed = {"src", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"}  # what the build copies or reads
    assert {line[1:] for line in ignored if line.startswith("!")} == needed


@pytest.fixture
def app():
    spec = importlib.util.spec_from_file_location("space_app", ROOT / "space" / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_space_makes_a_run_and_a_gallery_once(app, tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("lancedb", reason="a gallery needs LanceDB: pip install 'dear-vlm[gallery]'")
    monkeypatch.setattr("dear.data.world.tasks.TEST", 1)
    monkeypatch.setattr(app, "PICTURES", ["world:objects"])
    first = app.prepared(tmp_path, shots=1, epochs=1)
    begun = first[0].stat().st_mtime_ns
    assert app.prepared(tmp_path) == first == (tmp_path / "run", tmp_path / "gallery")
    assert first[0].stat().st_mtime_ns == begun
    with Service.open(*first) as service:
        assert len(service.require_gallery()) > 0
    monkeypatch.setenv("DEAR_RUN", "mine")
    assert app.prepared(tmp_path) == (Path("mine"), None)


def test_the_space_is_shown_in_the_pages_of_the_hub_alone(app, run, gallery_folder) -> None:
    from starlette.testclient import TestClient

    with Service.open(run, gallery_folder) as service:
        web = TestClient(app.in_frame(make_app(service, None, more=Page(run, service).routes)))
        page = web.get("/")
        assert (page.status_code, "frame-ancestors https://huggingface.co" in str(page.headers)) == (200, True)
        assert web.post("/v1/predict", json={"images": [b64("red")]}).status_code == 200
    card = (ROOT / "space" / "README.md").read_text(encoding="utf-8")
    (port,) = re.findall(r"^app_port: (\d+)$", card, re.MULTILINE)
    assert f'"0.0.0.0", {port})' in (ROOT / "space" / "app.py").read_text(encoding="utf-8")
