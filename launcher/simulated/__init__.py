"""An engine that answers like SGLang, from the physics of its KV cache. Its numbers are simulated and say so."""
