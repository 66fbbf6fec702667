"""Make task sets: generate tasks, import data sets and packages, find duplicates, mix, check and seal.

May import the library. The format of a task set is `muster.tasksets`.
"""
