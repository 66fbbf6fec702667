"""Differences between two steps: their codec, their two kinds (changed values, adapters), and applying them.

May import `format`. Used by `fetch`, which applies them, and by `publish`, which makes them.
"""
