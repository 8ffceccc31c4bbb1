"""Eight small programs of which seven hang, each for one reason, to see what `shardtoll hang` says of it.

    torchrun --nproc-per-node 3 -m shardtoll.samples.hangs skipped --out runs/skipped --hang-after 5
    shardtoll hang runs/skipped

`programs` has the programs; each ends with Ctrl-C, or with `--limit SECONDS`. It may import `profiler` and
`samples`. Start reading in `programs`.
"""
