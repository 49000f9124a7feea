"""Touches the world: processes, GPUs, host memory, and SGLang's flags, log lines, metrics and endpoints.

It knows nothing of studies or screens. SGLang is never imported: it is a command that is started and watched.
"""
