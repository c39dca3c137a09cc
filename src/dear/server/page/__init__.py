"""The local page of `dear serve --page`: classify images, inspect heads, search."""
