"""Requests that schemathesis generates from the OpenAPI document: what fits it is answered, all else is refused."""

import os
import subprocess
import sys

import pytest

from dear.server.api import Service

TOKEN = "0123456789abcdef"
HOOKS = """
import base64, schemathesis
from hypothesis import strategies
from mean_color import png
pictures = strategies.sampled_from(["red", "green", "blue"]).map(png)
schemathesis.openapi.format("binary", pictures)
schemathesis.openapi.format("byte", pictures.map(lambda picture: base64.b64encode(picture).decode()))

@schemathesis.hook  # the phase "coverage" does not read oneOf
def filter_case(context, case):
    return not (isinstance(case.body, dict) and {"image", "text"} <= case.body.keys())
"""  # the document cannot say which bytes are a picture


@pytest.mark.parametrize("token", [None, TOKEN])
def test_the_document_says_what_is_answered_and_what_is_refused(
    token, run, gallery_folder, serve_live, tmp_path
) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install 'dear-vlm[dev]'")
    (tmp_path / "hooks.py").write_text(HOOKS)
    with serve_live(Service.open(run, gallery_folder), token=token) as client:
        url = f"http://127.0.0.1:{client.port}/openapi.json"
        options = ["--max-examples", "8", "--seed", "1", "--continue-on-failure", "--no-color"]
        secret = ["--header", f"Authorization: Bearer {token}", "--phases", "fuzzing"] if token else []
        path = os.pathsep.join([str(tmp_path), *sys.path])
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", url, *options, *secret],
            env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": path},
            cwd=tmp_path, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tested: 6" in done.stdout
