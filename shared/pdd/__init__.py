"""PDD: one language model served across two datacenters.

Read in this order: core/messages.py (who says what to whom), core/events.py and core/effects.py (what a machine hears and
asks), core/roles/ (the five machines), ports.py (the seams), runtime/driver.py (the live shell), sim/world.py (the virtual one).
"""
