"""
What the library costs, measured against what people use today.

Every comparison is paired: the contenders take turns in one process, round
after round, and a ratio is the median of the ratios of the rounds. Absolute
times move by a factor of two or three with the machine's load; ratios hold.
"""
