"""What reads the class feature after the last layer of an image tower."""

CLS = "cls"
"""The state of the CLS token: OpenAI's and OpenCLIP's own ViTs, EVA, MobileCLIP B and L."""
MEAN = "mean"
"""The mean over the patches: CLIPA, ViTamin."""
PROBE = "probe"
"""A constant query that attends to all tokens once: SigLIP, PE-Core."""
