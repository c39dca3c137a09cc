"""Trials: methods fitted to the training part of a task, measured on another part, and compared in pairs."""
