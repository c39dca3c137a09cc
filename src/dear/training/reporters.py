"""Tools that get the numbers of each epoch besides metrics.jsonl: TensorBoard, MLflow, Weights & Biases."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dear.core.errors import needing

NOWHERE = "none"
REPORTERS = ("tensorboard", "mlflow", "wandb")
Report = Callable[[Mapping[str, float], int], object]


@contextmanager
def reporting(to: str, out: Path, settings: Mapping[str, Any]) -> Iterator[Report]:
    """A function that takes the numbers of an epoch, and the epoch. Servers are those of each tool's own settings."""
    with needing(f"--report-to {to} needs its package", to):
        if to == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter
        elif to == "mlflow":
            import mlflow
        elif to == "wandb":
            import wandb
    if to == "tensorboard":
        with SummaryWriter(str(out / to)) as board:
            yield lambda numbers, epoch: [board.add_scalar(name, value, epoch) for name, value in numbers.items()]
    elif to == "mlflow":
        with mlflow.start_run(run_name=out.resolve().name):
            mlflow.log_params(dict(settings))
            yield lambda numbers, epoch: mlflow.log_metrics(dict(numbers), epoch)
    elif to == "wandb":
        with wandb.init(project="dear", name=out.resolve().name, dir=str(out), config=dict(settings)) as run:
            yield lambda numbers, epoch: run.log(dict(numbers), epoch)
    else:
        yield lambda numbers, epoch: None
