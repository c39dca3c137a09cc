"""The local page of `dear app`: classify, look at heads, search, compare runs."""
