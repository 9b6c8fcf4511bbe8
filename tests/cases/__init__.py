"""Flights that others stumbled over in public, each as a small flight of our own, and its next of kin.

A test cites the report that it grew from; what it holds the pixels to is worked out here, in float64.
"""
