"""
The same workloads in what people use today.

`peer` is what a way of running a batch has to offer, `ways` holds one file for each, and
`roster` lists them. Each one lives in a process of its own (`host`), with the Python and the
packages that it needs; `crew` starts these processes and asks them, in turns. A measure is
one file (`stop`, `leaving`, `stall`, `cost`): what a host does, and what is made of it.
`page` writes the tables, `plot` the picture.
"""
