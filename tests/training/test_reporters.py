"""`--report-to`: every number of every epoch reaches the tool, offline."""

import importlib.util
import json

import pytest

import dear
from dear.core.errors import DearError
from dear.training import reporters


@pytest.mark.parametrize("tool", reporters.REPORTERS)
def test_numbers_of_each_epoch_reach_the_tool(tool, model_folder, few_pictures, tmp_path, monkeypatch) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed: pip install {tool}")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    settings = {"model": f"local-dir:{model_folder}", "device": "cpu", "shots": 1, "epochs": 2, "augment": "none"}
    dear.train("world:colors", method="clip-adapter", out=tmp_path / "run", report_to=tool, **settings)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 2
    if tool == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "run" / tool)).Reload()
        assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses)
    elif tool == "mlflow":
        import mlflow

        (run,) = mlflow.search_runs(output_format="list")
        history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
        assert [metric.value for metric in history] == pytest.approx(losses)
        assert run.data.params["epochs"] == "2"
    else:
        assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_a_tool_that_is_not_there(few_pictures, model_folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    settings = {"model": f"local-dir:{model_folder}", "device": "cpu", "shots": 1, "epochs": 1}
    with pytest.raises(DearError, match="pip install mlflow"):
        dear.train("world:colors", method="clip-adapter", out=tmp_path / "run", report_to="mlflow", **settings)
