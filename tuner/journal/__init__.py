"""The study's memory: a SQLite journal that records intent before action and survives kill -9."""
