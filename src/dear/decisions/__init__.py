"""Decisions on answers: how sure they are, none of these, a set of classes, or no answer."""
