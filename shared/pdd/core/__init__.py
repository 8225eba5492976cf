"""Decisions. No clock, no chance, no sockets: time comes in with each event, effects go out."""

PROTOCOL_VERSION = 1  # raised when two builds can no longer serve one request together
