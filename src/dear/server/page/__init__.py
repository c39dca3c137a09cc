"""The local page of `dear app`: classify images, inspect heads, search."""
