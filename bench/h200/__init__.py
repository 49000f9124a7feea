"""What was run on one real H200, and what came out."""
