"""Settings -> adapters -> ports -> machine -> driver: the only package that knows every adapter.

Each `open_*` connects one role's adapters, gives out what runs, and closes them in reverse order, whatever happens inside.
"""
