"""Measurements and tables that a release must show. Each prints its figures last: `figure NAME VALUE UNIT`."""
