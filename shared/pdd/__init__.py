"""PDD: one language model served across two datacenters.

Read in this order: core/messages/ (who says what to whom), core/events.py and core/effects.py (what a machine hears and asks),
core/roles/ (the five machines), ports.py (the seams), runtime/driver.py (the live shell), sim/world.py (the virtual one).

The roles: keeping.py, worker.py, prefill.py, receiver.py, relaying.py, relay_decode.py, main_decode.py; prefix_index.py; and the
router in planning.py, finishing.py, watching.py, router.py. A hand-over is decided in relaying.py, `_consider`.
"""
