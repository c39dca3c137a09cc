"""The server of `dear serve`, without and with its page, under load, beside the predictor alone.

    apt-get install wrk
    python benchmarks/serve.py RUN [--seconds 10] [--rounds 3] [--old SRC OLD_RUN]
    python benchmarks/serve.py RUN --requests 10000

wrk sends requests on loopback; each client sends one JPEG of 500 x 375 px after the other. "alone" is the predictor in
its own process, which repeatedly opens the same file 32 times and answers it as one batch. CPU is processor time per
answer in the serving process (without wrk's), which a busy machine changes little; all else is by the clock, so compare
only figures of one run, whose rounds alternate. Memory is that of the serving process (RSS) after the first and after
the last round with 200 clients.
With --requests, so many are sent by 32 clients, without wrk: every answer must be the same, and memory and open files
of the server are compared between a tenth of them and the end.
With --old, the page from the sources in SRC classifies the same picture, and so does this one's.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from PIL import Image

from dear.core.table import Table

BOUNDARY = "benchmark"
_CLIENTS = 32
SCRIPT = """
wrk.method = "POST"
wrk.body = io.open("%s", "rb"):read("*a")
wrk.headers["Content-Type"] = "%s"
done = function(summary, latency, requests)
  local e = summary.errors
  print(string.format('{"answers": %%d, "seconds": %%f, "p50": %%f, "p99": %%f, "lost": %%d, "refused": %%d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    e.connect + e.read + e.write + e.timeout, e.status))
end
"""
ALONE = """
import sys, time
import torch
from pathlib import Path
from dear import load
from dear.server.uploads import open_upload
predictor, data, batch = load(sys.argv[1]), Path(sys.argv[2]).read_bytes(), 32
def answer():
    predictor.predict_batch(torch.stack([predictor.preprocess(open_upload(data)) for _ in range(batch)]))
answer()
began, cpu, images = time.monotonic(), time.process_time(), 0
while time.monotonic() - began < float(sys.argv[3]):
    answer()
    images += batch
print(images / (time.monotonic() - began), 1000 * (time.process_time() - cpu) / images)
"""


class Load(NamedTuple):
    rate: float  # answers per second
    p50: float  # ms
    p99: float
    lost: int  # connections that failed or were reset, and responses that never came
    refused: int  # statuses other than 2xx
    cpu: float  # ms per answer


class Server(NamedTuple):
    url: str
    process: subprocess.Popen

    def memory(self) -> float:
        """MB"""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, path: str, script: Path, clients: int, seconds: float) -> Load:
        options = ["-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "300s", "-s", str(script)]
        command = ["wrk", *options, self.url + path]
        before = self.cpu()
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        summary = json.loads(out.splitlines()[-1])
        rate = (summary["answers"] - summary["refused"]) / summary["seconds"]
        cpu = 1000 * (self.cpu() - before) / max(1, summary["answers"])
        return Load(rate, summary["p50"], summary["p99"], summary["lost"], summary["refused"], cpu)


@contextmanager
def server(command: str, run: Path, source: Path) -> Iterator[Server]:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    arguments = [sys.executable, "-c", "import sys; from dear.cli import main; sys.exit(main())", command]
    process = subprocess.Popen(
        [*arguments, str(run), "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
    )
    began = time.monotonic()
    line = process.stdout.readline()
    print(f"dear {command} ({source.parent.name}): ready after {time.monotonic() - began:.1f} s", flush=True)
    try:
        yield Server(re.search(r"http://[\d.]+:\d+", line)[0], process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def scripts(folder: Path) -> tuple[Path, Path, Path]:
    """A photo, and scripts for wrk that send it in a form and by itself."""
    rng, photo = np.random.default_rng(0), folder / "photo.jpg"
    shapes = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
    noisy = np.asarray(shapes) + rng.normal(0, 8, (375, 500, 3))
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(photo, quality=85)
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'.encode()
    (folder / "form").write_bytes(head + photo.read_bytes() + f"\r\n--{BOUNDARY}--\r\n".encode())
    (folder / "form.lua").write_text(SCRIPT % (folder / "form", f"multipart/form-data; boundary={BOUNDARY}"))
    (folder / "raw.lua").write_text(SCRIPT % (photo, "image/jpeg"))
    return photo, folder / "form.lua", folder / "raw.lua"


def middle(rounds: list[Load]) -> Load:
    return Load(*(median(values) for values in zip(*rounds, strict=True)))


def api(run: Path, photo: Path, form: Path, args: argparse.Namespace) -> None:
    alone, loads, memory = [], {clients: [] for clients in (1, 64, 200)}, []
    with server("serve", run, args.source) as running:
        running.load("/v1/predict", form, 8, 2)  # the first answers are slower
        for _ in range(args.rounds):
            done = subprocess.run(
                [sys.executable, "-c", ALONE, str(run), str(photo), str(args.seconds)],
                env={**os.environ, "PYTHONPATH": str(args.source)}, check=True, capture_output=True, text=True,
            )  # fmt: skip
            alone.append([float(number) for number in done.stdout.split()])
            for clients, rounds in loads.items():
                seconds = args.seconds * (3 if clients == 200 else 1)  # the first responses come late
                rounds.append(running.load("/v1/predict", form, clients, seconds))
            memory.append(running.memory())
    rate, cpu = (median(values) for values in zip(*alone, strict=True))
    table = Table(["", "answers/s", "of alone", "p50 ms", "p99 ms", "lost", "not 2xx", "CPU ms", "of alone"])
    table.add("alone", rate, 1.0, None, None, None, None, cpu, 1.0)
    for clients, rounds in loads.items():
        load = middle(rounds)
        lost, refused = sum(one.lost for one in rounds), sum(one.refused for one in rounds)
        table.add(
            f"{clients} clients",
            load.rate,
            load.rate / rate,
            load.p50,
            load.p99,
            lost,
            refused,
            load.cpu,
            load.cpu / cpu,
        )
    print(table.text(), f"memory: {memory[0]:.0f} MB, {memory[-1]:.0f} MB", sep="\n", end="\n\n", flush=True)


def many(run: Path, photo: Path, args: argparse.Namespace) -> None:
    """Exactly `args.requests` requests over 32 connections that stay open."""
    boundary = f"multipart/form-data; boundary={BOUNDARY}"
    body = (photo.parent / "form").read_bytes()
    with server("serve", run, args.source) as running, ThreadPoolExecutor(_CLIENTS) as pool:
        host, connections = running.url.removeprefix("http://"), threading.local()

        def ask(_: int) -> tuple[int, bytes, float]:
            if not hasattr(connections, "mine"):
                connections.mine = http.client.HTTPConnection(host, timeout=300)
            began = time.perf_counter()
            connections.mine.request("POST", "/v1/predict", body, {"Content-Type": boundary})
            response = connections.mine.getresponse()
            return response.status, response.read(), 1000 * (time.perf_counter() - began)

        first = args.requests // 10
        began = time.perf_counter()
        results = list(pool.map(ask, range(first)))
        before = running.memory(), running.files()
        results += pool.map(ask, range(args.requests - first))
        seconds = time.perf_counter() - began
        after = running.memory(), running.files()
    statuses = Counter(status for status, _, _ in results)
    choices = {
        tuple(one["choice"] for one in json.loads(text)["answers"]) for status, text, _ in results if status == 200
    }
    waits = sorted(wait for _, _, wait in results)
    print(f"{args.requests} requests by {_CLIENTS} clients in {seconds:.0f} s ({args.requests / seconds:.1f}/s)")
    print(f"statuses: {dict(statuses)}, different answers: {len(choices)}")
    print(
        f"p50 {waits[len(waits) // 2]:.0f} ms, p99 {waits[len(waits) * 99 // 100]:.0f} ms, longest {waits[-1]:.0f} ms"
    )
    print(f"memory {before[0]:.0f} -> {after[0]:.0f} MB, open files {before[1]} -> {after[1]}")


def page(run: Path, raw: Path, args: argparse.Namespace) -> None:
    source, old_run = args.old
    loads = {"old": [], "new": []}
    with server("app", old_run, source) as old, server("app", run, args.source) as new:
        for _ in range(args.rounds):
            for name, running in (("old", old), ("new", new)):
                loads[name].append(running.load("/api/classify", raw, 64, 3 * args.seconds))
    table = Table(["page, 64 clients", "answers/s", "p50 ms", "p99 ms", "lost", "not 2xx", "CPU ms"])
    middles = {name: middle(rounds) for name, rounds in loads.items()}
    for name, load in middles.items():
        table.add(name, *load)
    print(table.text(), f"p99 of the old: {middles['new'].p99 / middles['old'].p99:.2f}", sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--old", type=Path, nargs=2, metavar=("SRC", "OLD_RUN"))
    parser.add_argument("--requests", type=int)
    args = parser.parse_args()
    args.source = Path(__file__).parents[1] / "src"
    if args.requests:
        with tempfile.TemporaryDirectory() as folder:
            many(args.run, scripts(Path(folder))[0], args)
        return
    if shutil.which("wrk") is None:
        sys.exit("needs wrk: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        photo, form, raw = scripts(Path(folder))
        api(args.run, photo, form, args)
        if args.old:
            page(args.run, raw, args)


if __name__ == "__main__":
    main()
