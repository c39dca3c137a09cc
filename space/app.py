"""The page of `dear serve --page` in a Space: trains a model on drawn signs at its first start, or takes $DEAR_RUN."""

import os
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

import dear
from dear.gallery import AdapterEncoder, Gallery
from dear.server.api import Service
from dear.server.page.views import Page
from dear.server.server import Address, make_app

DATA = "world:signs:night"  # a style that the bundled model has never seen
PICTURES = [f"world:{task}" for task in ("objects", "places")]
FRAME = b"frame-ancestors 'none'", b"frame-ancestors https://huggingface.co https://*.hf.space"


def in_frame(app: ASGIApp) -> ASGIApp:
    """The app, which may be shown inside the pages of the hub, and nowhere else."""

    async def framed(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_framed(message) -> None:
            headers = [(name, value.replace(*FRAME)) for name, value in message.get("headers", [])]
            await send({**message, "headers": headers} if headers else message)

        await app(scope, receive, send_framed)

    return framed


def prepared(work: Path, **settings) -> tuple[Path, Path | None]:
    """The run to serve and its gallery; a run given by $DEAR_RUN has the gallery $DEAR_GALLERY, or none."""
    if given := os.environ.get("DEAR_RUN"):
        gallery = os.environ.get("DEAR_GALLERY")
        return Path(given), Path(gallery) if gallery else None
    run, gallery = work / "run", work / "gallery"
    if not gallery.exists():
        predictor = dear.train(DATA, method="experts", out=run, resume=run.exists(), **settings)
        encoder = AdapterEncoder(run, predictor)
        Gallery.create(gallery, encoder).add(encoder, PICTURES)
    return run, gallery


def main() -> None:
    run, gallery = prepared(Path("space-run"), lr=0.01, epochs=20, lambda_fusion=0.1)
    with Address("0.0.0.0", 7860) as address, Service.open(run, gallery) as service:
        address.serve(in_frame(make_app(service, None, more=Page(run, service).routes)))


if __name__ == "__main__":
    main()
