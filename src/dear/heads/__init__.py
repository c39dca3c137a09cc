"""What each attention head of a backbone does, and the role that follows from it."""
