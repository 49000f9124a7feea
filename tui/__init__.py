"""Shows: collector -> frozen Snapshot -> panels."""
