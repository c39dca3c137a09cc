"""dear app: a local page around one adapted model."""

import argparse
from contextlib import suppress
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder made by `dear train`")
    parser.add_argument("--gallery", type=Path, help="folder made by `dear index` with this run: what can be searched")
    parser.add_argument("--port", type=int, default=7860, help="where the page is; 0: any free port (default: 7860)")
    parser.add_argument("--host", default="127.0.0.1", help="who can reach it (default: 127.0.0.1, this machine alone)")


def run(args: argparse.Namespace) -> None:
    from dear.app.page import Page
    from dear.app.server import Server

    with Server(args.host, args.port) as server:  # first: a port in use is told at once
        server.routes = Page(args.run_folder, args.gallery).routes
        print(f"the page is at {server.address}    (Ctrl-C ends it)", flush=True)
        if not server.local:
            print("everybody who can reach this address can use it", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
