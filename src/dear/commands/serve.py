"""dear serve: an HTTP API for an adapted or exported model, and a local page around it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dear.commands.shared import add_device_arguments
from dear.core.errors import DearError
from dear.core.extras import require_extra
from dear.core.files import read_text

if TYPE_CHECKING:
    from starlette.routing import Route

_PORT, _PAGE_PORT = 8000, 7860


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_folder", type=Path, metavar="RUN", help="folder made by `dear fit`, `dear train` or `dear export`"
    )
    parser.add_argument(
        "--page", action="store_true",
        help="also serve a page for people: classify, inspect heads, search",
    )  # fmt: skip
    parser.add_argument("--gallery", help="gallery to search, made by `dear index` with this run")
    parser.add_argument(
        "--port", type=int, help=f"port to listen on; 0: any free one (default: {_PORT}; with --page: {_PAGE_PORT})"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine alone)"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with a token that every request must send"
    )
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Serves the API, and with --page the routes of the page."""
    if args.page and args.token_file:
        raise DearError("The page sends no token: leave out --token-file, or --page.")
    token = None if args.token_file is None else read_token(args.token_file)
    port = args.port if args.port is not None else _PAGE_PORT if args.page else _PORT
    require_extra("The server", "serve")
    from dear.server.server import Address, make_app

    with Address(args.host, port) as address:  # first, so that a port in use is reported at once
        from dear.server.api import Service

        with Service.open(args.run_folder, args.gallery, args.device, args.precision) as service:
            more: list[Route] = []
            if args.page:  # its routes need PyTorch, which an exported model is served without
                from dear.server.page.views import Page

                more = Page(args.run_folder, service).routes
            app = make_app(service, address.hosts, token, more)
            api = f"the API is at {address.url}/v1, its documentation at {address.url}/docs"
            print(f"the page is at {address.url}" if args.page else api, "   (Ctrl-C stops it)", flush=True)
            if not address.local and token is None:
                print("anyone who can reach this address can use it", flush=True)
            address.serve(app)


def read_token(file: Path) -> str:
    token = read_text(file).strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise DearError(
            f"The token file {file} must contain one word of at least 16 characters: `openssl rand -hex 16` makes one."
        )
    return token
