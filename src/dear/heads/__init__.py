"""Attention heads: their contributions to the image feature, their roles, and checks of these."""
