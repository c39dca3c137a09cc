"""The flags --device and --precision of the commands that only use a model."""

import argparse


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N, mps (default: auto)")
    parser.add_argument(
        "--precision",
        choices=("auto", "fp32", "bf16", "fp16"),
        default="auto",
        help="precision of the towers; auto: half on CUDA, else fp32 (default: auto)",
    )
