"""Whole brokers and their clients in one process, on virtual time, from one seed.

`loop` is time and scheduling, `network`, `executor`, `coordination` and `disk` are the environment's simulated
adapters; `world` puts brokers and clients into them, `faults` breaks things, `workload` produces and consumes,
`history` records what clients saw, and `checker` checks it. `seeds` runs a seed, many seeds, or a seed against a
planted bug (`mutants`). The broker and the client are the production code, unchanged.
"""
