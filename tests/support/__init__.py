"""Fixtures, builders and sample data that several tests share.

May import everything but test modules. Used by the tests only.
"""
