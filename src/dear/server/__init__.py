"""The server of `dear serve`, with or without its page: an adapted model behind HTTP, safe to leave running."""
