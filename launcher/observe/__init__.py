"""What a running server says of itself: one typed ServerSample from /metrics, the JSON endpoints and the log."""
