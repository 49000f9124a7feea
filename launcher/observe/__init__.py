"""What a running server says of itself: one typed ServerSample from /metrics and the JSON endpoints.

`read.ServerReader` asks a server; `sample_from_metrics`, `sample_from_loads`, `sample_from_get_load` and
`sample_from_server_info` read one answer each, and `merge` joins what they tell.
"""

from launcher.observe.loads import sample_from_get_load, sample_from_loads
from launcher.observe.merge import merge
from launcher.observe.metrics import sample_from_metrics
from launcher.observe.server_info import sample_from_server_info

__all__ = [
    "merge",
    "sample_from_get_load",
    "sample_from_loads",
    "sample_from_metrics",
    "sample_from_server_info",
]
