"""Tools that get the numbers of each epoch besides metrics.jsonl: TensorBoard, MLflow, Weights & Biases."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dear.core.errors import library_errors, needing

NOWHERE = "none"
REPORTERS = ("tensorboard", "mlflow", "wandb")
Report = Callable[[Mapping[str, float], int], object]


@contextmanager
def reporting(to: str, out: Path, settings: Mapping[str, Any]) -> Iterator[Report]:
    """A function that takes the numbers of an epoch, and the epoch. Servers are those of each tool's own settings."""
    with ExitStack() as stack:
        with library_errors(f"--report-to {to}"), needing(f"--report-to {to} needs its package", to):
            report = _start(to, out, dict(settings), stack)
        yield report


def _start(to: str, out: Path, settings: dict[str, Any], stack: ExitStack) -> Report:
    name = out.resolve().name
    if to == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        board = stack.enter_context(SummaryWriter(str(out / to)))
        return lambda numbers, epoch: [board.add_scalar(key, value, epoch) for key, value in numbers.items()]
    if to == "mlflow":
        import mlflow

        stack.enter_context(mlflow.start_run(run_name=name))
        mlflow.log_params(settings)
        return lambda numbers, epoch: mlflow.log_metrics(dict(numbers), epoch)
    if to == "wandb":
        import wandb

        run = stack.enter_context(wandb.init(project="dear", name=name, dir=str(out), config=settings))
        return lambda numbers, epoch: run.log(dict(numbers), epoch)
    return lambda numbers, epoch: None
