"""What the screen shows, as pure functions from a Snapshot to rows of (text, role) spans. No Textual in here:
`tui.widgets` gives roles their colours, and `tui.once` prints the same rows as plain text.
"""
