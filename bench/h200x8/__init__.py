"""Several real GPUs at once: what tensor-parallel ranks can show and one GPU cannot."""
