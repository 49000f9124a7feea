"""Measuring one level: `live` over HTTP, `virtual` on the simulated engine in virtual time."""
