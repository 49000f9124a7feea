"""An engine that answers like SGLang, from the physics of a KV cache. No GPU; every number says simulated.

Where to look:

    presets/     what is simulated: a box of GPUs and a model on it, as YAML; every number with its source
    memory.py    capacity, headroom, and the stage at which a start dies (pure arithmetic)
    engine.py    one running engine in virtual time (pure, event-driven)
    scheduler.py admission, chunked prefill, retraction
    radix.py     the prefix cache and its host tier (HiCache)
    box.py       VirtualBox: starts and stops engines in virtual time, with the log text of each
    logtext.py   SGLang's log lines, in the wording of 0.5.17 and of 0.5.23
    faults.py    what can be made to go wrong
    gpus.py      SimulatedGpus: the GPUs of simulated processes, read as NVML's are
    server/      the process: SGLang's flags and endpoints in real or scaled time
"""
