"""Decisions. No clock, no chance, no sockets: time comes in with each event, effects go out."""
