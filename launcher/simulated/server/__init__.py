"""The simulated server as a process: SGLang's flags, log lines, endpoints, children and deaths."""
