"""The page as a person uses it: `dear serve --page` in a process of its own, and a real Chromium.

Screenshots go into pytest's folder, or into the one that DEAR_SCREENSHOTS names.
"""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip("needs Chromium in /usr/bin: apt-get install chromium", allow_module_level=True)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
DEAR = "import sys; from dear.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def address(run, gallery_folder):
    """The page of the run with its gallery, in a process that Ctrl-C ends quietly."""
    command = [sys.executable, "-c", DEAR, "app", str(run), "--gallery", str(gallery_folder), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell that runs the tests in the background ignores Ctrl-C, and children inherit that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, text=True, preexec_fn=heed, **pipes)
    line = process.stdout.readline()
    url = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert url, line + process.stderr.read()
    yield url[0]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert re.fullmatch(r"backbone: local-dir:\S+, adapted by dear\n", err)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, address):
    """A fresh page. Afterwards: no other site was asked, and no script failed."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    outside = [url for url in requests if not url.startswith((address, "data:"))]
    page.close()
    assert (outside, errors) == ([], [])


@pytest.fixture
def screenshot(page, tmp_path):
    folder = Path(os.environ.get("DEAR_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> None:
        page.screenshot(path=folder / f"{name}.png", full_page=True)
        with Image.open(folder / f"{name}.png") as picture:
            assert len(picture.convert("RGB").resize((64, 64)).getcolors(4096) or ()) > 10  # not an empty page

    return take


def test_the_page_is_there_at_once(page, address) -> None:
    began = time.monotonic()
    page.goto(address, wait_until="domcontentloaded")
    assert time.monotonic() - began < 8  # 0.1 s on an idle machine; tests may run on a very busy one
    page.get_by_text("Choose an image").first.wait_for()
    assert page.locator("#about").inner_text().replace("\n", " ").startswith("model")


def test_classify(page, address, photos, screenshot) -> None:
    page.goto(address)
    page.locator("#classify input[type=file]").set_input_files(photos / "warm" / "7.png")
    page.locator(".maps img").first.wait_for()
    assert page.locator(".maps img").count() == 6  # the class feature, and five attributes
    assert page.locator(".vote").count() == 6
    assert re.fullmatch(r"\d+%", page.locator(".answer > span").inner_text())
    page.locator(".thumb").first.click()
    page.locator(".thumb[aria-pressed]").wait_for()
    page.locator("#classify .result:not(.busy)").wait_for()
    screenshot("classify")


def test_broken_uploads_show_a_sentence(page, address, tmp_path, png_header, photos, screenshot) -> None:
    text, bomb, huge = tmp_path / "text.jpg", tmp_path / "bomb.png", tmp_path / "huge.png"
    text.write_text("this is no image")
    bomb.write_bytes(png_header(60_000, 60_000))
    huge.write_bytes(bytes(20_000_001))
    page.goto(address)
    field, alert = page.locator("#classify input[type=file]"), page.locator("#classify [role=alert]")
    for file, sentence in (
        (text, "This file cannot be read as an image"),
        (bomb, "more than 40 million pixels"),
        (huge, "The file has more than 20 MB"),
    ):
        field.set_input_files(file)
        alert.filter(has_text=sentence).wait_for()
        assert "Traceback" not in page.content()
    screenshot("broken")
    field.set_input_files(photos / "cold" / "0.png")  # and it goes on
    page.locator(".maps img").first.wait_for()
    assert alert.count() == 0


def test_heads(page, address, screenshot) -> None:
    page.goto(f"{address}#heads")
    page.get_by_role("button", name="layer 2, head 0: core attribute, color").click()
    page.get_by_text("a red <b>sign</b>", exact=True).wait_for()  # shown as text, not as HTML
    page.get_by_text("Chosen from 8 pictures").wait_for()
    assert page.locator(".thumbs.wide img").count() == 8
    page.get_by_role("button", name="layer 3, head 1: ").click()
    page.get_by_text("not in the map").wait_for()
    page.get_by_text("Chosen from 8 pictures").wait_for()
    assert page.locator(".head").count() == 8
    screenshot("heads")


def test_search(page, address, photos, screenshot) -> None:
    page.goto(f"{address}#search")
    page.locator(".hit").first.wait_for()
    page.locator("#search input[type=file]").set_input_files(photos / "warm" / "7.png")
    page.get_by_text("Most similar in class").wait_for()
    assert page.locator(".hit").first.get_attribute("title") == str(photos / "warm" / "7.png")
    page.get_by_role("slider", name="color").fill("0.7")
    page.get_by_text("Most similar in class and color").wait_for()
    page.get_by_label("label", exact=True).fill("cold")
    page.locator(".hit").nth(4).wait_for(state="detached")
    assert set(page.locator(".caption > span").all_inner_texts()) == {"cold"}
    screenshot("search")
    page.get_by_label("sentence").fill("a warm thing")
    page.locator("#search .drop img").wait_for(state="hidden")
    page.get_by_label("label", exact=True).fill("nowhere")
    page.get_by_text("No image of the gallery has such a label").wait_for()


def test_the_api_is_described_and_can_be_tried(page, address, photos, screenshot) -> None:
    """Nothing of it is loaded from elsewhere: see `page`."""
    refused = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    page.goto(f"{address}/docs")
    page.locator("#operations-API-predict button").first.click()
    page.get_by_role("button", name="Add string item").click()
    page.locator("input[type=file]").first.set_input_files(photos / "warm" / "7.png")
    page.get_by_role("button", name="Execute").click()
    response = page.locator(".live-responses-table")
    response.get_by_text('"answers"').first.wait_for()  # not only in the example
    assert response.locator("tbody .response-col_status").first.inner_text().startswith("200")
    screenshot("docs")
    assert refused == []


@pytest.mark.parametrize("view", ["classify", "heads", "search"])
def test_nothing_is_wider_than_a_telephone(browser, address, view, photos, tmp_path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(f"{address}#{view}")
    if view == "classify":
        page.locator("#classify input[type=file]").set_input_files(photos / "warm" / "7.png")
        page.locator(".maps img").first.wait_for()
    page.locator(f"#{view} > *").first.wait_for()
    page.wait_for_load_state("networkidle")
    folder = Path(os.environ.get("DEAR_SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"{view}-narrow.png", full_page=True)
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert wide <= 390


def test_dark(browser, address, tmp_path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(address)
    page.get_by_text("Choose an image").first.wait_for()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.close()
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 60
