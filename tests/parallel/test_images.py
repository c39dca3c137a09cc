"""Results of the workers of a real Ray cluster equal those of one process, in the same order and bits."""

import random
from collections.abc import Iterator
from operator import length_hint
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dear
from dear.cli import main
from dear.data.world.tasks import world_task
from dear.parallel.cluster import _AHEAD, _stream
from dear.training.adapter import save_adapter
from on_ray import sentences

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'dear-vlm[ray]'")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Pictures of two kinds, in enough batches for two workers; two files of each kind are not images."""
    folder = tmp_path_factory.mktemp("photos")
    for kind in ("circle", "square"):
        (folder / kind).mkdir()
        for number in range(2):
            (folder / kind / f"{number}0.png").write_text("no picture")
    for number, example in enumerate(world_task("shapes").test[:80]):
        picture = example.picture.open().resize((600, 600))
        picture.save(folder / ("circle", "square")[number % 2] / f"{number + 100}.png", compress_level=1)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _small_batches() -> Iterator[None]:
    """Small batches, so that a few pictures make many."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("gallery.index.ENCODE_BATCH", "heads.stream.STREAM_BATCH", "commands.predict._FILES_AT_ONCE"):
            patch.setattr(f"dear.{name}", 8)
        yield


def test_a_gallery_has_the_same_rows_when_a_worker_is_killed(
    model_folder, role_file, photos, mark, one_is_killed, tmp_path: Path, capsys
) -> None:
    pytest.importorskip("lancedb")
    from dear.gallery import Gallery

    asked = ["index", str(photos), "--model", f"local-dir:{model_folder}", "--roles", str(role_file), "--device", "cpu"]
    one_is_killed("ray::_Worker.do", lambda: (tmp_path / "many").exists())
    for name, flags in {"one": [], "many": ["--ray"]}.items():
        assert main([*asked, "--out", str(tmp_path / name), *flags]) == 0
        said = capsys.readouterr()
        assert "added 80, already there 0, duplicates 0, unreadable 4\n" in said.out
        assert said.err.count("dear: skipped: The image") == 4
    one, many = (Gallery.open(tmp_path / name) for name in ("one", "many"))
    assert one.rows(one.table.schema.names).equals(many.rows(many.table.schema.names))


def test_a_role_map_is_the_same_to_the_last_digit(model_folder, photos, mark, tmp_path: Path, capsys) -> None:
    asked = ["roles", "--model", f"local-dir:{model_folder}", "--probe", f"shape={photos}", "--limit", "40"]
    asked += ["--device", "cpu", "--out"]
    assert main([*asked, str(tmp_path / "one.json")]) == 0
    said = capsys.readouterr().err
    assert main([*asked, str(tmp_path / "many.json"), "--ray"]) == 0
    assert "A picture is left out: The image" in said
    assert (tmp_path / "many.json").read_text() == (tmp_path / "one.json").read_text()


def test_predictions_come_in_order_and_alone_on_stdout(model_folder, role_file, photos, mark, tmp_path, capsys) -> None:
    model = dear.create(f"local-dir:{model_folder}", classes=["circle", "square"], roles=str(role_file), first_layer=2)
    save_adapter(tmp_path / "run", "dear", model.model, model.template)
    asked = ["predict", str(tmp_path / "run"), str(photos), "--json", "--device", "cpu"]
    assert main(asked) == 0
    one = capsys.readouterr()
    assert main([*asked, "--ray", "--ray-cpus", "2"]) == 0  # one worker that is at two batches at once
    many = capsys.readouterr()
    assert many.out == one.out
    assert len(many.out.splitlines()) == 80
    assert sentences(many.err) == sentences(one.err)


class Pretended:
    """A fake of Ray and its workers, each with a queue; any may finish next."""

    def __init__(self, rng: random.Random, workers: int) -> None:
        self.rng, self.queues = rng, [[] for _ in range(workers)]
        self.workers = [SimpleNamespace(ready=self._method(q), do=self._method(q)) for q in self.queues]
        self.exceptions = ray.exceptions
        self.asked = self.most = 0

    def _method(self, queue: list[object]) -> SimpleNamespace:
        def remote(*chunk: int) -> tuple[int, ...]:
            self.asked += 1
            queue.append((self.asked, *chunk))
            self.most = max(self.most, len(queue))
            return queue[-1]

        return SimpleNamespace(remote=remote)

    def wait(self, running: list[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[object]]:
        queue = self.rng.choice([queue for queue in self.queues if queue])
        assert queue[0] in running
        return [queue.pop(0)], []

    def get(self, reference: tuple[int, ...]) -> int | None:
        return reference[1] if len(reference) > 1 else None


@given(seed=st.integers(0, 10**6), workers=st.integers(1, 4), each=st.integers(1, 3), chunks=st.integers(0, 40))
def test_results_stream_in_order_and_are_bounded(seed: int, workers: int, each: int, chunks: int) -> None:
    pretended, source, taken = Pretended(random.Random(seed), workers), iter(range(chunks)), []
    for result in _stream(pretended, pretended.workers, each, source):
        taken.append(result)
        assert chunks - length_hint(source) - len(taken) < _AHEAD * each * workers
    assert taken == list(range(chunks))
    assert pretended.most <= each
